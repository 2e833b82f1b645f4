// SPDX-License-Identifier: Apache-2.0
// KvLayout, KvPlan and choose_sources for python/.../kv; runs travel as one table of numbers.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/bindings.h"
#include "kv/plan.h"

namespace nxl::bindings {
namespace {

namespace py = pybind11;
using kv::KvLayout;
using kv::KvSlot;
using kv::Plan;
using kv::Run;

constexpr py::ssize_t kColumns = 8;

// One row a run: source region, target region, source offset, target offset, bytes, source stride, target stride,
// count.
py::array_t<uint64_t> table(const std::vector<Run>& runs) {
  py::array_t<uint64_t> result({static_cast<py::ssize_t>(runs.size()), kColumns});
  uint64_t* out = result.mutable_data();
  for (const Run& run : runs) {
    const uint64_t row[kColumns] = {run.source_region, run.target_region, run.source_offset, run.target_offset,
                                    run.bytes,         run.source_stride, run.target_stride, run.count};
    std::memcpy(out, row, sizeof row);
    out += kColumns;
  }
  return result;
}

}  // namespace

void bind_kv_plan(py::module_& m) {
  py::class_<KvSlot>(m, "KvSlot")
      .def(py::init([](uint32_t region, uint64_t offset, uint64_t block_stride, uint64_t token_stride,
                       uint64_t head_stride) {
             return KvSlot{region, offset, block_stride, token_stride, head_stride};
           }),
           py::kw_only(), py::arg("region"), py::arg("offset"), py::arg("block_stride"), py::arg("token_stride"),
           py::arg("head_stride"))
      .def_readonly("region", &KvSlot::region)
      .def_readonly("offset", &KvSlot::offset)
      .def_readonly("block_stride", &KvSlot::block_stride)
      .def_readonly("token_stride", &KvSlot::token_stride)
      .def_readonly("head_stride", &KvSlot::head_stride);

  py::class_<KvLayout>(m, "KvLayout")
      .def(py::init<>())
      .def_readwrite("dtype", &KvLayout::dtype)
      .def_readwrite("element_bytes", &KvLayout::element_bytes)
      .def_readwrite("head_dim", &KvLayout::head_dim)
      .def_readwrite("total_heads", &KvLayout::total_heads)
      .def_readwrite("parts", &KvLayout::parts)
      .def_readwrite("total_layers", &KvLayout::total_layers)
      .def_readwrite("first_layer", &KvLayout::first_layer)
      .def_readwrite("layer_count", &KvLayout::layer_count)
      .def_readwrite("tp_rank", &KvLayout::tp_rank)
      .def_readwrite("tp_size", &KvLayout::tp_size)
      .def_readwrite("context_rank", &KvLayout::context_rank)
      .def_readwrite("context_size", &KvLayout::context_size)
      .def_readwrite("context_interleave", &KvLayout::context_interleave)
      .def_readwrite("block_tokens", &KvLayout::block_tokens)
      .def_readwrite("block_count", &KvLayout::block_count)
      .def_readwrite("slots", &KvLayout::slots)
      .def_readwrite("region_bytes", &KvLayout::region_bytes)
      .def_property_readonly("first_head", &KvLayout::first_head)
      .def_property_readonly("head_count", &KvLayout::head_count)
      .def("validate", &KvLayout::validate, py::arg("who") = "local");

  py::class_<Plan>(m, "KvPlan")
      .def(py::init(&Plan::make), py::arg("source"), py::arg("target"))
      .def_property_readonly("empty", &Plan::empty)
      .def(
          "apply",
          [](const Plan& plan, uint64_t begin, uint64_t end, const std::vector<uint32_t>& source_blocks,
             const std::vector<uint32_t>& target_blocks, uint64_t source_first_token, uint64_t target_first_token) {
            std::vector<Run> runs;
            {
              const py::gil_scoped_release release;
              plan.apply({begin, end}, {source_blocks, source_first_token}, {target_blocks, target_first_token}, runs);
            }
            return table(runs);
          },
          py::arg("begin"), py::arg("end"), py::arg("source_blocks"), py::arg("target_blocks"),
          py::arg("source_first_token") = 0, py::arg("target_first_token") = 0)
      .def(
          "tail",
          [](const Plan& plan, uint64_t begin, uint64_t end, const std::vector<uint32_t>& target_blocks,
             uint64_t target_first_token) {
            std::vector<Run> runs;
            plan.tail({begin, end}, {target_blocks, target_first_token}, runs);
            return table(runs);
          },
          py::arg("begin"), py::arg("end"), py::arg("target_blocks"), py::arg("target_first_token") = 0);

  m.def(
      "choose_kv_sources",
      [](const std::vector<KvLayout>& sources, const KvLayout& target) { return kv::choose_sources(sources, target); },
      py::arg("sources"), py::arg("target"));
}

}  // namespace nxl::bindings
