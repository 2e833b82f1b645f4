// SPDX-License-Identifier: Apache-2.0
// How long the loader waits for a core before it calls the wait a failure.
#pragma once

#include <chrono>

#include "core/api.h"

namespace nxl::loader {

// NEURON_LIBTORCH_EXECUTION_TIMEOUT in seconds (a decimal number > 0), default 600; read at every call, so it belongs
// on slow paths. Throws Error(kInvalid) for anything else.
NXL_API std::chrono::milliseconds execution_timeout();

}  // namespace nxl::loader
