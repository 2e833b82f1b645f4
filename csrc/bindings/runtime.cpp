// SPDX-License-Identifier: Apache-2.0
// _C: which runtime this process uses, and closing it.
#include "nrt/runtime.h"

#include "bindings/bindings.h"

namespace nxl::bindings {
namespace py = pybind11;
namespace {

py::dict runtime_info(bool initialize) {
  std::shared_ptr<nrt::Runtime> runtime;
  {
    const py::gil_scoped_release release;
    runtime = initialize ? nrt::Runtime::get() : nrt::Runtime::get_if_initialized();
  }
  const nrt::Choice choice = runtime != nullptr ? runtime->choice() : nrt::Runtime::choose();
  py::dict info;
  info["runtime"] = choice.host ? "host" : "nrt";
  info["library"] = choice.dlopen_name;
  info["reason"] = choice.reason;
  info["chip_suspected"] = choice.chip_suspected;
  info["initialized"] = runtime != nullptr && runtime->is_open();
  if (runtime != nullptr && runtime->is_open()) {
    info["version"] = runtime->version();
    py::list memory;
    for (int core = 0; core < runtime->core_count(); ++core) memory.append(runtime->memory(core));
    info["core_count"] = runtime->core_count();
    info["memory"] = memory;  // (bytes used, bytes limit) per core
  }
  return info;
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.def("runtime_info", &runtime_info, py::arg("initialize") = false,
        "The runtime chosen and why; with `initialize`, or once it is initialised, also its version, core_count and "
        "memory. Loads nothing unless asked to initialise.");
  m.def("close_runtime", &nrt::Runtime::close, py::call_guard<py::gil_scoped_release>(),
        "Closes the runtime for good; device memory can no longer be used afterwards.");
}

}  // namespace nxl::bindings
