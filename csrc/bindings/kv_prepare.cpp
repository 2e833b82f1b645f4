// SPDX-License-Identifier: Apache-2.0
// The half of KvAgent that makes transfers: leases, tables of runs and descriptors, plans.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/bindings.h"
#include "bindings/kv_agent.h"
#include "core/error.h"

namespace nxl::bindings {
namespace {

namespace py = pybind11;
using kv::Agent;
using kv::BlockList;
using kv::LeaseTicket;
using kv::Milliseconds;
using kv::Run;

using RunTable = py::array_t<uint64_t, py::array::c_style | py::array::forcecast>;
using Indices = py::array_t<uint32_t, py::array::c_style>;  // no forcecast: -1 must not become a large number
using Blocks = std::vector<uint32_t>;

LeaseTicket lease_from(const py::dict& fields) {
  LeaseTicket ticket;
  const auto key = fields["key"].cast<std::string>();
  NXL_CHECK(key.size() == sizeof ticket.key, kInvalid, "lease key has ", key.size(), " bytes, it must have ",
            sizeof ticket.key);
  std::memcpy(ticket.key.data(), key.data(), key.size());
  ticket.id = fields["id"].cast<uint64_t>();
  ticket.word = fields["word"].cast<uint64_t>();
  ticket.generation = fields["generation"].cast<uint64_t>();
  return ticket;
}

// Rows as KvPlan.apply gives them.
std::vector<Run> runs_from(const RunTable& table) {
  NXL_CHECK(
      table.ndim() == 2 && table.shape(1) == 8, kInvalid,
      "runs must have the shape [n, 8]: source region, target region, source offset, target offset, bytes, source "
      "stride, target stride, count");
  const auto rows = static_cast<size_t>(table.shape(0));
  const uint64_t* row = table.data();
  std::vector<Run> runs(rows);
  uint64_t wide = 0;
  for (size_t i = 0; i < rows; ++i, row += 8) {
    wide |= row[0] | row[1] | row[7];
    runs[i] = {static_cast<uint32_t>(row[0]), static_cast<uint32_t>(row[1]), row[2], row[3], row[4], row[5], row[6],
               static_cast<uint32_t>(row[7])};
  }
  NXL_CHECK(wide <= UINT32_MAX, kInvalid, "a region or a count in the run table is above ", UINT32_MAX);
  return runs;
}

std::span<const uint32_t> numbers(const Indices& indices) {
  return {indices.data(), static_cast<size_t>(indices.size())};
}

// Rows of region, offset, bytes, stride, count.
kv::DescriptorList descriptors_from(const RunTable& table) {
  NXL_CHECK(table.ndim() == 2 && table.shape(1) == 5, kInvalid,
            "descriptors must have the shape [n, 5]: region, offset, bytes, stride, count");
  std::vector<kv::Descriptor> rows(static_cast<size_t>(table.shape(0)));
  const uint64_t* row = table.data();
  uint64_t wide = 0;
  for (kv::Descriptor& descriptor : rows) {
    wide |= row[0] | row[4];
    descriptor = {static_cast<uint32_t>(row[0]), row[1], row[2], row[3], static_cast<uint32_t>(row[4])};
    row += 5;
  }
  NXL_CHECK(wide <= UINT32_MAX, kInvalid, "a region or a count in the descriptors is above ", UINT32_MAX);
  return kv::DescriptorList(std::move(rows));
}

void bind_leases(py::class_<Agent>& agent) {
  agent
      .def(
          "grant",
          [](Agent& a, const std::string& request, const Blocks& blocks, const std::vector<std::string>& readers,
             int64_t ttl_ms) {
            const auto ticket = without_gil([&] { return a.grant(request, blocks, readers, Milliseconds(ttl_ms)); });
            py::dict result;
            result["id"] = ticket.id;
            result["key"] = key_bytes(ticket.key);
            result["word"] = ticket.word;
            result["generation"] = ticket.generation;
            return result;
          },
          py::arg("request"), py::arg("blocks"), py::arg("readers"), py::arg("ttl_ms"))
      .def(
          "renew",
          [](Agent& a, uint64_t lease, int64_t ttl_ms) {
            return outcome(without_gil([&] { return a.renew(lease, Milliseconds(ttl_ms)); }));
          },
          py::arg("lease"), py::arg("ttl_ms"))
      .def(
          "release_lease",
          [](Agent& a, uint64_t lease, const std::string& reason) {
            return outcome(without_gil([&] { return a.release_lease(lease, reason); }));
          },
          py::arg("lease"), py::arg("reason"))
      .def(
          "poll_lease_events",
          [](Agent& a, size_t most) {
            py::list result;
            for (const auto& event : without_gil([&] { return a.poll_lease_events(most); })) {
              py::dict entry;
              entry["id"] = event.id;
              entry["request"] = event.request;
              entry["end"] = kv::lease_end_name(event.end);
              entry["reason"] = event.reason;
              entry["blocks"] = event.blocks;
              result.append(entry);
            }
            return result;
          },
          py::arg("most"))
      .def(
          "finish_lease",
          [](Agent& a, uint64_t peer, const py::dict& lease) {
            const LeaseTicket ticket = lease_from(lease);
            return outcome(without_gil([&] { return a.finish_lease(peer, ticket); }));
          },
          py::arg("peer"), py::arg("lease"));
}

void bind_prepare(py::class_<Agent>& agent) {
  agent
      .def(
          "prepare_read",
          [](Agent& a, uint64_t peer, const RunTable& runs, const std::optional<py::dict>& lease) {
            std::optional<LeaseTicket> ticket;
            if (lease) ticket = lease_from(*lease);
            return without_gil([&] {
              return ticket ? a.prepare_read(peer, runs_from(runs), *ticket) : a.prepare_read(peer, runs_from(runs));
            });
          },
          py::arg("peer"), py::arg("runs"), py::arg("lease") = py::none())
      .def(
          "prepare_read_indexed",
          [](Agent& a, uint64_t peer, const kv::DescriptorList& source, const Indices& source_indices,
             const kv::DescriptorList& target, const Indices& target_indices) {
            const auto from = numbers(source_indices), to = numbers(target_indices);
            return without_gil([&] { return a.prepare_read(peer, source, from, target, to); });
          },
          py::arg("peer"), py::arg("source"), py::arg("source_indices"), py::arg("target"), py::arg("target_indices"))
      .def(
          "prepare_write_indexed",
          [](Agent& a, uint64_t peer, const kv::DescriptorList& source, const Indices& source_indices,
             const kv::DescriptorList& target, const Indices& target_indices) {
            const auto from = numbers(source_indices), to = numbers(target_indices);
            return without_gil([&] { return a.prepare_write(peer, source, from, target, to); });
          },
          py::arg("peer"), py::arg("source"), py::arg("source_indices"), py::arg("target"), py::arg("target_indices"))
      .def(
          "prepare_write",
          [](Agent& a, uint64_t peer, const RunTable& runs) {
            return without_gil([&] { return a.prepare_write(peer, runs_from(runs)); });
          },
          py::arg("peer"), py::arg("runs"))
      .def(
          "prepare_kv_read",
          [](Agent& a, uint64_t peer, const std::optional<py::dict>& lease, uint64_t begin, uint64_t end,
             const Blocks& remote_blocks, uint64_t remote_first_token, const Blocks& local_blocks,
             uint64_t local_first_token, bool finish_lease, bool zero_tail) {
            std::optional<LeaseTicket> ticket;
            if (lease) ticket = lease_from(*lease);
            return without_gil([&] {
              const BlockList remote{remote_blocks, remote_first_token}, local{local_blocks, local_first_token};
              const kv::KvReadOptions options{finish_lease, zero_tail};
              return ticket ? a.prepare_kv_read(peer, *ticket, {begin, end}, remote, local, options)
                            : a.prepare_kv_read(peer, {begin, end}, remote, local, options);
            });
          },
          py::arg("peer"), py::arg("lease"), py::arg("begin"), py::arg("end"), py::arg("remote_blocks"),
          py::arg("remote_first_token"), py::arg("local_blocks"), py::arg("local_first_token"),
          py::arg("finish_lease") = true, py::arg("zero_tail") = false)
      .def(
          "prepare_kv_write",
          [](Agent& a, uint64_t peer, uint64_t begin, uint64_t end, const Blocks& local_blocks,
             uint64_t local_first_token, const Blocks& remote_blocks, uint64_t remote_first_token) {
            return without_gil([&] {
              return a.prepare_kv_write(peer, {begin, end}, BlockList{local_blocks, local_first_token},
                                        BlockList{remote_blocks, remote_first_token});
            });
          },
          py::arg("peer"), py::arg("begin"), py::arg("end"), py::arg("local_blocks"), py::arg("local_first_token"),
          py::arg("remote_blocks"), py::arg("remote_first_token"));
}

}  // namespace

void bind_kv_prepare(py::module_& m, py::class_<Agent>& agent) {
  py::class_<kv::DescriptorList>(m, "KvDescriptors")
      .def(py::init(&descriptors_from), py::arg("rows"))
      .def("__len__", &kv::DescriptorList::size);
  bind_leases(agent);
  bind_prepare(agent);
}

}  // namespace nxl::bindings
