// SPDX-License-Identifier: Apache-2.0
// torch.classes.neuron.Runtime: the stateless handle on the process's runtime that serving plugins make at call sites.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <cstring>
#include <string>
#include <tuple>

#include "device/error_edge.h"
#include "device/memory.h"
#include "nrt/runtime.h"

namespace nxl::ops {
namespace {

using nxl::device::at_torch_edge;

struct RuntimeHandle final : torch::CustomClassHolder {};
using Self = c10::intrusive_ptr<RuntimeHandle>;

void initialize(const Self&) {
  at_torch_edge([] { nrt::Runtime::get(); });
}

// Unsafe because tensors that are still alive lose their memory.
void unsafe_close(const Self&) {
  at_torch_edge([] { nrt::Runtime::close(); });
}

// {bytes used, bytes free} of the current device's core.
std::tuple<int64_t, int64_t> get_vnc_memory_stats(const Self&) {
  const auto [used, limit] = at_torch_edge([] { return nrt::Runtime::get()->memory(nxl::device::resolve_device(-1)); });
  return {static_cast<int64_t>(used), static_cast<int64_t>(limit > used ? limit - used : 0)};
}

int64_t get_visible_nc_count(const Self&) {
  return at_torch_edge([] { return nrt::visible_core_count(); });
}

std::string bounded(const char* text, size_t size) { return {text, strnlen(text, size)}; }

// (family, size, architecture name, device revision) as NRT reports them.
std::tuple<int64_t, int64_t, std::string, std::string> get_instance_info(const Self&) {
  nrt_instance_info_t info{};
  at_torch_edge([&] {
    NXL_NRT_CHECK(nrt::Runtime::get()->api().nrt_get_instance_info(&info, sizeof(info)), "nrt_get_instance_info",
                  "the instance this process runs on");
  });
  return {info.family, info.size, bounded(info.arch_name, sizeof(info.arch_name)),
          bounded(info.device_revision, sizeof(info.device_revision))};
}

void start_profiling(const Self&, const c10::IValue&, const c10::IValue&, const c10::IValue&, const c10::IValue&,
                     const c10::IValue&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "start_profiling is not supported on this runtime");
}

void stop_profiling(const Self&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "stop_profiling is not supported on this runtime");
}

TORCH_LIBRARY_FRAGMENT(neuron, m) {
  m.class_<RuntimeHandle>("Runtime")
      .def(torch::init<>())
      .def("initialize", &initialize)
      .def("unsafe_close", &unsafe_close)
      .def("get_vnc_memory_stats", &get_vnc_memory_stats)
      .def("get_visible_nc_count", &get_visible_nc_count)
      .def("get_instance_info", &get_instance_info)
      .def("start_profiling", &start_profiling, "",
           {torch::arg("output_dir"), torch::arg("activities") = c10::IValue(),
            torch::arg("neuron_cores") = c10::IValue(), torch::arg("sys_trace_max_events_per_nc") = c10::IValue(),
            torch::arg("neff_cache_dir") = c10::IValue()})
      .def("stop_profiling", &stop_profiling);
}

}  // namespace
}  // namespace nxl::ops
