// SPDX-License-Identifier: Apache-2.0
// The parts of _C, each defined in its own file and added to the module by module.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace nxl::bindings {

void bind_errors(pybind11::module_& m);      // errors.cpp: must be first, it translates for the others
void bind_device(pybind11::module_& m);      // device.cpp: devices, waiting, memory, random numbers
void bind_fallback(pybind11::module_& m);    // fallback.cpp: eager operators on the CPU
void bind_executable(pybind11::module_& m);  // executable.cpp: loaded graphs and their calls
void bind_runtime(pybind11::module_& m);     // runtime.cpp: which runtime, its life cycle
void bind_neff(pybind11::module_& m);        // neff.cpp: what a NEFF holds
void bind_kv_plan(pybind11::module_& m);     // kv_plan.cpp: layouts of KV caches and the plans between them
void bind_kv_agent(pybind11::module_& m);    // kv_agent.cpp: the KV-transfer agent, after kv_plan

}  // namespace nxl::bindings
