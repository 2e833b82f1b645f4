// SPDX-License-Identifier: Apache-2.0
// The edge to Python: nxl::Error and c10 exceptions become Python exceptions here and nowhere else.
#include <torch/csrc/Exceptions.h>

#include <exception>

#include "bindings/bindings.h"
#include "device/error_edge.h"

namespace nxl::bindings {
namespace {

// One mapping of kinds to exceptions, the one to c10; torch knows the Python type of each c10 exception.
void translate_torch_error(const Error& error) {
  try {
    device::throw_as_torch(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    translate_torch_error(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

}  // namespace

void bind_errors(pybind11::module_&) { pybind11::register_local_exception_translator(translate); }

}  // namespace nxl::bindings
