// SPDX-License-Identifier: Apache-2.0
// The NRT status codes that the agent's own calls return.
#pragma once

#include "nrt_abi.h"

namespace nxl::kv {

inline constexpr int kNrtFailure = NRT_FAILURE;
inline constexpr int kNrtInvalid = NRT_INVALID;
inline constexpr int kNrtInvalidHandle = NRT_INVALID_HANDLE;
inline constexpr int kNrtResource = NRT_RESOURCE;  // busy, or a limit was reached
inline constexpr int kNrtTimeout = NRT_TIMEOUT;
inline constexpr int kNrtClosed = NRT_CLOSED;

}  // namespace nxl::kv
