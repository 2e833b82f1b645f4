// SPDX-License-Identifier: Apache-2.0
// Translation of exceptions into NRT statuses.
#include "host/edge.h"

#include <exception>
#include <new>

#include "core/error.h"
#include "host/log.h"

namespace nxl::host {
namespace {

NRT_STATUS status_of_kind(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalid:
      return NRT_INVALID;
    case ErrorKind::kOutOfMemory:
      return NRT_RESOURCE;
    case ErrorKind::kUnavailable:
      return NRT_EXEC_NC_BUSY;
    case ErrorKind::kClosed:
      return NRT_CLOSED;
    case ErrorKind::kUnsupported:  // an operation or a format newer than this runtime
      return NRT_UNSUPPORTED_NEFF_VERSION;
    case ErrorKind::kExecution:
      return NRT_EXEC_COMPLETED_WITH_ERR;
    case ErrorKind::kInternal:
      return NRT_FAILURE;
  }
  return NRT_FAILURE;
}

}  // namespace

Status status_of_exception() noexcept {
  int code = NRT_FAILURE;
  try {
    throw;
  } catch (const Error& error) {
    code = error.nrt_status() != 0 ? error.nrt_status() : status_of_kind(error.kind());
    try {
      return {code, error.what()};
    } catch (...) {
    }
  } catch (const std::bad_alloc&) {
    code = NRT_RESOURCE;
    try {
      return {code, "host memory ran out"};
    } catch (...) {
    }
  } catch (const std::exception& error) {
    try {
      return {code, error.what()};
    } catch (...) {
    }
  } catch (...) {
  }
  return {code, {}};
}

NRT_STATUS report_exception(Call call) noexcept {
  const Status status = status_of_exception();
  const auto code = static_cast<NRT_STATUS>(status.code);
  // A core too full for a tensor is an answer, not a fault: an allocator that caches gives memory back and asks again.
  const bool is_full = code == NRT_RESOURCE && call == Call::nrt_tensor_allocate;
  const LogLevel level = is_full ? LogLevel::kInfo : LogLevel::kError;
  try {
    log_parts(level, call_name(call), ": ", nrt_get_status_as_str(code), ": ", status.message);
  } catch (...) {
  }
  return code;
}

}  // namespace nxl::host
