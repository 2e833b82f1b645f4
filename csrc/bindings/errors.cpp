// SPDX-License-Identifier: Apache-2.0
// The edge to Python: nxl::Error and c10 exceptions become Python exceptions here and nowhere else.
#include <torch/csrc/Exceptions.h>

#include <exception>

#include "bindings/bindings.h"
#include "core/error.h"

namespace nxl::bindings {
namespace {

PyObject* python_type(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalid:
      return PyExc_ValueError;
    case ErrorKind::kOutOfMemory:
      return THPException_OutOfMemoryError;
    case ErrorKind::kUnsupported:
      return PyExc_NotImplementedError;
    case ErrorKind::kUnavailable:
    case ErrorKind::kClosed:
    case ErrorKind::kExecution:
    case ErrorKind::kInternal:
      break;
  }
  return PyExc_RuntimeError;
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyErr_SetString(python_type(error.kind()), error.what());
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

}  // namespace

void bind_errors(pybind11::module_&) { pybind11::register_local_exception_translator(translate); }

}  // namespace nxl::bindings
