// SPDX-License-Identifier: Apache-2.0
// Error: what the control path throws. The three edges (C interface, torch, Python) translate it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "core/api.h"
#include "core/status.h"

namespace nxl {

// The kind decides which exception a caller of the outer interfaces sees.
enum class ErrorKind {
  kInvalid,      // bad argument, bad file, wrong tensor: ValueError at the Python edge
  kOutOfMemory,  // device memory: torch.OutOfMemoryError
  kUnavailable,  // no runtime library, no core, core busy: RuntimeError
  kClosed,       // used after close: RuntimeError
  kUnsupported,  // this runtime does not offer it: NotImplementedError
  kExecution,    // NRT reported a failed execution: RuntimeError
  kInternal,     // our own fault: RuntimeError
};

class NXL_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int nrt_status = 0)
      : std::runtime_error(message), kind_(kind), nrt_status_(nrt_status) {}
  ErrorKind kind() const { return kind_; }
  int nrt_status() const { return nrt_status_; }  // 0 when no NRT call was involved

 private:
  ErrorKind kind_;
  int nrt_status_;
};

[[noreturn]] NXL_API void throw_error(ErrorKind kind, const std::string& message, int nrt_status = 0);

namespace detail {
template <typename... Parts>
[[gnu::cold, gnu::noinline]] std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
}  // namespace detail

}  // namespace nxl

// One branch and one call to a cold function: NXL_CHECK(index < count, kInvalid, "neuron:", index, " ...").
#define NXL_CHECK(condition, kind, ...)                                               \
  do {                                                                                \
    if (__builtin_expect(!(condition), 0)) {                                          \
      ::nxl::throw_error(::nxl::ErrorKind::kind, ::nxl::detail::concat(__VA_ARGS__)); \
    }                                                                                 \
  } while (0)
