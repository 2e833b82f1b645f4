// SPDX-License-Identifier: Apache-2.0
// The edge to torch: nxl::Error leaves this library as the c10 exception that torch turns into the right Python type.
#pragma once

#include <utility>

#include "core/api.h"
#include "core/error.h"
#include "core/status.h"

namespace nxl::device {

// kInvalid: c10::ValueError. kOutOfMemory: c10::OutOfMemoryError. kUnsupported: c10::NotImplementedError. Others:
// c10::Error (RuntimeError).
[[noreturn, gnu::cold]] NXL_API void throw_as_torch(const Error& error);

// Runs `body`; an nxl::Error that leaves it becomes a c10 exception. Costs nothing when nothing is thrown.
template <typename Body>
decltype(auto) at_torch_edge(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw_as_torch(error);
  }
}

// Throws the status of a queue (an execution error, a time-out) as c10::Error; nothing for success.
void throw_if_failed(const Status& status, const char* what);

}  // namespace nxl::device
