// SPDX-License-Identifier: Apache-2.0
// _C: counters and mode of the CPU fallback.
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "ops/fallback_policy.h"

namespace nxl::bindings {
namespace py = pybind11;

void bind_fallback(py::module_& m) {
  m.def("fallback_counts", &ops::fallback_counts);
  m.def("fallback_total", &ops::fallback_total);
  m.def("reset_fallback_counts", &ops::reset_fallback_counts);
  m.def("fallback_mode", &ops::fallback_mode_name);
  m.def("set_fallback_mode", &ops::set_fallback_mode, py::arg("mode"));
}

}  // namespace nxl::bindings
