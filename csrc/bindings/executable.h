// SPDX-License-Identifier: Apache-2.0
// What csrc/ops gives to Python: loaded graphs, graph calls, and the state of the eager fallback.
#pragma once

#include <pybind11/pybind11.h>

namespace nxl::bindings {

// Adds TensorSpec, Executable and GraphCall.
void bind_executable(pybind11::module_& m);
// Adds fallback_counts, fallback_total, reset_fallback_counts, fallback_mode, set_fallback_mode, force_staging.
void bind_fallback(pybind11::module_& m);

}  // namespace nxl::bindings
