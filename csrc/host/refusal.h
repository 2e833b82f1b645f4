// SPDX-License-Identifier: Apache-2.0
// refuse: throws the Error that the C interface turns into an NRT status and one log line.
#pragma once

#include "core/error.h"
#include "nrt_abi.h"

namespace nxl::host {

template <typename... Parts>
[[noreturn, gnu::cold]] void refuse(NRT_STATUS status, const Parts&... parts) {
  throw_error(status == NRT_RESOURCE ? ErrorKind::kOutOfMemory : ErrorKind::kInvalid, ::nxl::detail::concat(parts...),
              status);
}

}  // namespace nxl::host
