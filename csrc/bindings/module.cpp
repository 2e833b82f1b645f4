// SPDX-License-Identifier: Apache-2.0
// The Python module _C: what python/libtorch_neuronx_lite may call. Types only; the work is done below.
#include <pybind11/pybind11.h>
#include <torch/headeronly/version.h>

#include "bindings/bindings.h"
#include "ops/registration.h"

PYBIND11_MODULE(_C, m) {
  nxl::ops::ensure_linked();
  // The torch this build is for; _compat compares its minor with the torch that is running.
  m.attr("built_for_torch") = TORCH_VERSION;
  nxl::bindings::bind_errors(m);
  nxl::bindings::bind_device(m);
  nxl::bindings::bind_fallback(m);
  nxl::bindings::bind_executable(m);
  nxl::bindings::bind_runtime(m);
  nxl::bindings::bind_neff(m);
  nxl::bindings::bind_kv_plan(m);
  nxl::bindings::bind_kv_agent(m);
}
