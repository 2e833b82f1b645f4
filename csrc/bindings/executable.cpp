// SPDX-License-Identifier: Apache-2.0
// Executable and GraphCall: a NEFF loaded from bytes, and its call from a Python list or tuple of tensors.
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "ops/graph_call.h"
#include "ops/host_scope.h"

namespace py = pybind11;

namespace nxl::bindings {
namespace {

using ops::GraphCall;
using ops::GraphResult;
using ops::LoadedGraph;
using ops::TensorSpec;

std::shared_ptr<LoadedGraph> load(const py::buffer& neff, int64_t device_index, uint32_t rank, uint32_t world_size) {
  const py::buffer_info info = neff.request();
  TORCH_CHECK_VALUE(info.ndim <= 1 && (info.ndim == 0 || info.strides[0] == info.itemsize),
                    "neff: expected contiguous bytes");
  TORCH_CHECK_VALUE(device_index >= 0 && device_index <= std::numeric_limits<c10::DeviceIndex>::max(),
                    "device_index: ", device_index, " is not a device index");
  const py::gil_scoped_release released;
  return std::make_shared<LoadedGraph>(
      std::span(static_cast<const std::byte*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)),
      static_cast<c10::DeviceIndex>(device_index), rank, world_size);
}

GraphResult result_from(const std::pair<std::string, int64_t>& entry) {
  const auto& [kind, index] = entry;
  if (kind == "input") return {GraphResult::Kind::kInput, index};
  if (kind == "output") return {GraphResult::Kind::kOutput, index};
  if (kind == "none") return {GraphResult::Kind::kNone, 0};
  TORCH_CHECK_VALUE(false, "result plan: '", kind, "' is none of input, output, none");
}

std::shared_ptr<GraphCall> make_call(std::shared_ptr<LoadedGraph> executable, std::vector<int64_t> argument_indices,
                                     const std::vector<std::pair<std::string, int64_t>>& result_plan,
                                     bool has_rng_seed) {
  std::vector<GraphResult> results;
  results.reserve(result_plan.size());
  for (const auto& entry : result_plan) results.push_back(result_from(entry));
  return std::make_shared<GraphCall>(std::move(executable), std::move(argument_indices), std::move(results),
                                     has_rng_seed);
}

py::object call(const GraphCall& self, const py::object& given) {
  TORCH_CHECK_TYPE(PyTuple_Check(given.ptr()) || PyList_Check(given.ptr()),
                   "compiled graph: expected a list or tuple of tensors, got ", Py_TYPE(given.ptr())->tp_name);
  // Another thread may change a list while this one waits without the GIL; a tuple holds its items.
  const auto arguments = py::reinterpret_steal<py::object>(PySequence_Tuple(given.ptr()));
  if (!arguments) throw py::error_already_set();
  const size_t count = static_cast<size_t>(PyTuple_GET_SIZE(arguments.ptr()));
  c10::SmallVector<const at::Tensor*, 64> tensors(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(arguments.ptr(), i);
    tensors[i] = THPVariable_Check(item) ? &THPVariable_Unpack(item) : nullptr;
  }
  std::vector<at::Tensor> outputs;
  {
    const py::gil_scoped_release released;
    outputs = self.run(std::span<const at::Tensor* const>(tensors.data(), count));
  }
  const std::vector<GraphResult>& plan = self.results();
  auto results = py::reinterpret_steal<py::object>(PyTuple_New(static_cast<Py_ssize_t>(plan.size())));
  if (!results) throw py::error_already_set();
  for (size_t i = 0; i < plan.size(); ++i) {
    PyObject* item = Py_None;
    if (plan[i].kind == GraphResult::Kind::kOutput) {
      item = THPVariable_Wrap(outputs[plan[i].index]);
      if (item == nullptr) throw py::error_already_set();
    } else {
      if (plan[i].kind == GraphResult::Kind::kInput) item = PyTuple_GET_ITEM(arguments.ptr(), plan[i].index);
      Py_INCREF(item);
    }
    PyTuple_SET_ITEM(results.ptr(), i, item);
  }
  return results;
}

py::object dtype_object(const TensorSpec& spec) {
  if (!spec.dtype) return py::none();
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(*spec.dtype)));
}

py::object alias_object(const TensorSpec& spec) {
  return spec.alias_input < 0 ? py::object(py::none()) : py::object(py::int_(spec.alias_input));
}

}  // namespace

void bind_executable(py::module_& m) {
  py::class_<TensorSpec>(m, "TensorSpec")
      .def_readonly("name", &TensorSpec::name)
      .def_readonly("bytes", &TensorSpec::bytes)
      .def_property_readonly("dtype", &dtype_object)
      .def_property_readonly("shape", [](const TensorSpec& spec) { return py::tuple(py::cast(spec.shape)); })
      .def_property_readonly("alias_input", &alias_object)
      .def("__repr__", [](const TensorSpec& spec) {
        return py::str("TensorSpec(name={!r}, dtype={}, shape={}, bytes={}, alias_input={})")
            .format(spec.name, dtype_object(spec), py::tuple(py::cast(spec.shape)), spec.bytes, alias_object(spec));
      });
  py::class_<LoadedGraph, std::shared_ptr<LoadedGraph>>(m, "Executable")
      .def_static("load", &load, py::arg("neff"), py::arg("device_index"), py::arg("rank") = 0,
                  py::arg("world_size") = 1)
      .def_property_readonly("inputs", [](const LoadedGraph& graph) { return graph.inputs(); })
      .def_property_readonly("outputs", [](const LoadedGraph& graph) { return graph.outputs(); })
      .def_property_readonly("core", [](const LoadedGraph& graph) { return static_cast<int>(graph.device()); })
      .def_property_readonly("closed", &LoadedGraph::closed)
      .def("close", &LoadedGraph::close, py::call_guard<py::gil_scoped_release>());
  py::class_<GraphCall, std::shared_ptr<GraphCall>>(m, "GraphCall")
      .def(py::init(&make_call), py::arg("executable"), py::arg("argument_indices"), py::arg("result_plan"),
           py::arg("has_rng_seed") = false)
      .def_property_readonly("argument_indices", &GraphCall::argument_indices)
      .def("__call__", &call, py::arg("arguments"));
  // Tests only: copy through the runtime as on a chip, where the host cannot address device memory.
  m.def("force_staging", &ops::set_staging_forced, py::arg("forced"));
}

}  // namespace nxl::bindings
