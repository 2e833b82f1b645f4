// SPDX-License-Identifier: Apache-2.0
// The cold end of NXL_CHECK.
#include "core/error.h"

namespace nxl {

void throw_error(ErrorKind kind, const std::string& message, int nrt_status) { throw Error(kind, message, nrt_status); }

}  // namespace nxl
