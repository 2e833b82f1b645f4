// SPDX-License-Identifier: Apache-2.0
// _C: devices, waiting, memory figures and random numbers.
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "bindings/bindings.h"
#include "device/allocator.h"
#include "device/context.h"
#include "device/generator.h"
#include "device/memory.h"
#include "device/stream.h"

namespace nxl::bindings {
namespace py = pybind11;
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

// Opens the runtime, and tells torch to ask again (and be refused) in a forked child.
void initialize() {
  {
    const py::gil_scoped_release release;
    device::runtime();
  }
  torch::utils::register_fork_handler_for_device_init(device::kDeviceType);
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const c10::DeviceIndex before = device::get_current_device();
  if (index >= 0) device::set_current_device(index);
  return before;
}

py::dict device_properties(c10::DeviceIndex index) {
  index = device::resolve_device(index);
  const auto runtime = device::runtime();
  const auto [used, limit] = runtime->memory(index);
  py::dict result;
  result["name"] = runtime->is_host() ? "Neuron host core" : "NeuronCore";
  result["index"] = static_cast<int>(index);
  result["total_memory"] = limit;
  result["runtime"] = runtime->is_host() ? "host" : "nrt";
  result["runtime_version"] = runtime->version();
  return result;
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("initialize", &initialize);
  m.def("is_initialized", &device::runtime_is_open);
  m.def("in_bad_fork", &device::in_bad_fork);
  m.def("device_count", &device::device_count, Release());
  m.def("current_device", &device::current_device);
  m.def("set_device", &device::set_current_device, py::arg("device"));
  m.def("exchange_device", &exchange_device, py::arg("device"),
        "Makes `device` current and returns the one before; -1 changes nothing.");
  m.def("device_properties", &device_properties, py::arg("device"));
  m.def(
      "synchronize", [](c10::DeviceIndex index) { device::synchronize(device::resolve_device(index)); },
      py::arg("device"), Release());

  m.def(
      "memory_info",
      [](c10::DeviceIndex index) { return device::allocator().getMemoryInfo(device::resolve_device(index)); },
      py::arg("device"), "{free, total} bytes of the core.", Release());
  m.def(
      "empty_cache", [](c10::DeviceIndex index) { device::allocator().empty_cache(device::resolve_device(index)); },
      py::arg("device"), Release());
  m.def(
      "empty_all_caches", [] { device::allocator().emptyCache(); }, Release());
  m.def(
      "largest_free_block",
      [](c10::DeviceIndex index) { return device::allocator().largest_free_block(device::resolve_device(index)); },
      py::arg("device"));
  m.def(
      "tensor_handle",
      [](const at::Tensor& tensor) { return reinterpret_cast<uintptr_t>(device::tensor_handle(tensor)); },
      py::arg("tensor"), "The address of the NRT tensor that is exactly this contiguous tensor's bytes.");
  m.def(
      "locate",
      [](uintptr_t address) -> std::optional<py::tuple> {
        const device::Location found = device::locate(reinterpret_cast<const void*>(address));
        if (found.segment == nullptr) return std::nullopt;
        return py::make_tuple(static_cast<int>(found.device), reinterpret_cast<uintptr_t>(found.segment), found.offset,
                              found.bytes_after);
      },
      py::arg("address"), "(device, segment handle, offset, bytes after) of an address in device memory, or None.");

  m.def("default_generator", &device::default_generator, py::arg("device"));
  m.def("seed_default_generators", &device::seed_default_generators, py::arg("seed"));
  m.def(
      "reserve_philox",
      [](c10::DeviceIndex index, uint64_t increment) {
        return at::check_generator<device::NeuronGenerator>(device::default_generator(index))
            ->reserve_philox(increment);
      },
      py::arg("device"), py::arg("increment"),
      "The (seed, offset) for one run of a compiled graph that draws at most `increment` 32-bit numbers.");
}

}  // namespace nxl::bindings
