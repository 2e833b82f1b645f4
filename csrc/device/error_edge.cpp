// SPDX-License-Identifier: Apache-2.0
// nxl::Error to c10 exceptions: the only file of the torch half that knows both.
#include "device/error_edge.h"

#include <c10/util/Exception.h>

#include <string>

namespace nxl::device {

void throw_as_torch(const Error& error) {
  const std::string message = error.what();
  switch (error.kind()) {
    case ErrorKind::kInvalid:
      C10_THROW_ERROR(ValueError, message);
    case ErrorKind::kOutOfMemory:
      C10_THROW_ERROR(OutOfMemoryError, message);
    case ErrorKind::kUnsupported:
      C10_THROW_ERROR(NotImplementedError, message);
    case ErrorKind::kUnavailable:
    case ErrorKind::kClosed:
    case ErrorKind::kExecution:
    case ErrorKind::kInternal:
      break;
  }
  C10_THROW_ERROR(Error, message);
}

void throw_if_failed(const Status& status, const char* what) {
  if (__builtin_expect(!status.is_ok(), 0)) {
    C10_THROW_ERROR(Error, detail::concat(what, ": ", status.message, " (NRT status ", status.code, ")"));
  }
}

}  // namespace nxl::device
