// SPDX-License-Identifier: Apache-2.0
// KvAgent for python/.../kv: plain data in and out. Statuses are (code, message); the GIL is not held while it works.
#include "bindings/kv_agent.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"

namespace nxl::bindings {
namespace {

namespace py = pybind11;
using kv::Agent;
using kv::AgentConfig;
using kv::Key;
using kv::Milliseconds;

py::dict peer_dict(const kv::PeerInfo& info) {
  py::dict result;
  result["id"] = info.id;
  result["name"] = info.name;
  result["endpoint"] = info.endpoint;
  result["incarnation"] = key_bytes(info.incarnation);
  result["state"] = kv::state_name(info.state);
  result["why"] = info.why;
  result["providers"] = info.providers;
  result["reconnects"] = info.reconnects;
  return result;
}

py::dict status_dict(const kv::TransferStatus& status) {
  py::dict result;
  result["state"] = kv::state_name(status.state);
  result["cause"] = kv::cause_name(status.cause);
  result["message"] = status.message;
  result["quiesced"] = status.quiesced;
  result["bytes_done"] = status.bytes_done;
  py::list failed;
  for (const kv::TokenRange& range : status.failed_tokens) failed.append(py::make_tuple(range.begin, range.end));
  result["failed_tokens"] = failed;
  return result;
}

py::dict times_dict(const kv::TransferTimes& times) {
  py::dict result;
  result["plan"] = times.plan;
  result["post"] = times.post;
  result["queue"] = times.queue;
  result["wire"] = times.wire;
  result["flush"] = times.flush;
  result["validate"] = times.validate;
  result["total"] = times.total;
  result["ack"] = times.ack;
  result["bytes"] = times.bytes;
  result["runs"] = times.runs;
  result["provider"] = times.provider;
  return result;
}

py::list region_list(const std::vector<kv::RemoteRegion>& regions) {
  py::list result;
  for (const kv::RemoteRegion& region : regions) {
    py::dict entry;
    entry["index"] = region.index;
    entry["name"] = region.name;
    entry["address"] = region.address;
    entry["bytes"] = region.bytes;
    entry["core"] = region.core;
    entry["readable"] = region.readable;
    entry["writable"] = region.writable;
    result.append(entry);
  }
  return result;
}

std::unique_ptr<Agent> make(const std::string& name, const py::kwargs& options) {
  AgentConfig config;
  config.name = name;
  py::dict left = py::dict(**options);
  const auto take = [&](const char* field, auto& value) {
    if (left.contains(field)) value = left.attr("pop")(field).cast<std::decay_t<decltype(value)>>();
  };
  const auto take_time = [&](const char* field, Milliseconds& value) {
    if (left.contains(field)) value = Milliseconds(left.attr("pop")(field).cast<int64_t>());
  };
  take("bind", config.bind);
  take("key_file", config.key_file);
  take("insecure", config.insecure);
  take("providers", config.providers);
  take("data_checksum", config.data_checksum);
  take("copy_threads", config.copy_threads);
  take_time("default_deadline_ms", config.default_deadline);
  take("max_peers", config.max_peers);
  take("max_regions", config.max_regions);
  take("max_leases", config.max_leases);
  take("max_transfers", config.max_transfers);
  take("max_bytes_in_flight", config.max_bytes_in_flight);
  take("max_notification_bytes", config.max_notification_bytes);
  take("inline_bytes", config.inline_bytes);
  take_time("keep_alive_ms", config.keep_alive);
  take_time("suspect_after_ms", config.suspect_after);
  take_time("down_after_ms", config.down_after);
  for (const auto& [key, value] : left) {
    throw py::type_error("KvAgent has no option '" + key.cast<std::string>() + "'");
  }
  return without_gil([&] { return Agent::create(std::move(config)); });
}

py::dict config_dict(const AgentConfig& config) {
  py::dict result;
  result["name"] = config.name;
  result["bind"] = config.bind;
  result["key_file"] = config.key_file;
  result["insecure"] = config.insecure;
  result["providers"] = config.providers;
  result["data_checksum"] = config.data_checksum;
  result["copy_threads"] = config.copy_threads;
  result["default_deadline_ms"] = config.default_deadline.count();
  result["max_peers"] = config.max_peers;
  result["max_regions"] = config.max_regions;
  result["max_leases"] = config.max_leases;
  result["max_transfers"] = config.max_transfers;
  result["max_bytes_in_flight"] = config.max_bytes_in_flight;
  result["max_notification_bytes"] = config.max_notification_bytes;
  result["inline_bytes"] = config.inline_bytes;
  result["keep_alive_ms"] = config.keep_alive.count();
  result["suspect_after_ms"] = config.suspect_after.count();
  result["down_after_ms"] = config.down_after.count();
  return result;
}

void bind_peers(py::class_<Agent>& agent) {
  agent
      .def(
          "connect",
          [](Agent& a, const std::string& endpoint, int64_t deadline_ms) {
            return without_gil([&] { return a.connect(endpoint, Milliseconds(deadline_ms)); });
          },
          py::arg("endpoint"), py::arg("deadline_ms"))
      .def("find_peer", &Agent::find_peer, py::arg("name"), py::call_guard<py::gil_scoped_release>())
      .def(
          "peer_state",
          [](const Agent& a, uint64_t peer) {
            std::string why;
            const auto state = without_gil([&] { return a.peer_state(peer, &why); });
            return py::make_tuple(kv::state_name(state), why);
          },
          py::arg("peer"))
      .def(
          "peer_info",
          [](const Agent& a, uint64_t peer) { return peer_dict(without_gil([&] { return a.peer_info(peer); })); },
          py::arg("peer"))
      .def("peers",
           [](const Agent& a) {
             py::list result;
             for (const auto& info : without_gil([&] { return a.peers(); })) result.append(peer_dict(info));
             return result;
           })
      .def(
          "peer_regions",
          [](const Agent& a, uint64_t peer) { return region_list(without_gil([&] { return a.peer_regions(peer); })); },
          py::arg("peer"))
      .def(
          "peer_layout",
          [](const Agent& a, uint64_t peer) -> py::object {
            kv::KvLayout layout;
            std::vector<uint32_t> regions;
            if (!without_gil([&] { return a.peer_layout(peer, &layout, &regions); })) return py::none();
            return py::make_tuple(layout, py::tuple(py::cast(regions)));
          },
          py::arg("peer"))
      .def("disconnect", &Agent::disconnect, py::arg("peer"), py::call_guard<py::gil_scoped_release>())
      .def(
          "notify",
          [](Agent& a, uint64_t peer, const py::bytes& payload) {
            const std::string bytes = payload;
            return outcome(without_gil([&] { return a.notify(peer, bytes); }));
          },
          py::arg("peer"), py::arg("payload"))
      .def(
          "poll_notifications",
          [](Agent& a, size_t most) {
            py::list result;
            for (const auto& n : without_gil([&] { return a.poll_notifications(most); })) {
              result.append(py::make_tuple(n.peer, py::bytes(n.payload)));
            }
            return result;
          },
          py::arg("most"));
}

void bind_transfers(py::class_<Agent>& agent) {
  agent
      .def(
          "post",
          [](Agent& a, uint64_t transfer, int64_t deadline_ms, const py::bytes& notification) {
            const std::string bytes = notification;
            return outcome(without_gil([&] { return a.post(transfer, Milliseconds(deadline_ms), bytes); }));
          },
          py::arg("transfer"), py::arg("deadline_ms"), py::arg("notification") = py::bytes())
      .def(
          "check",
          [](const Agent& a, uint64_t transfer) { return status_dict(without_gil([&] { return a.check(transfer); })); },
          py::arg("transfer"))
      .def(
          "wait",
          [](Agent& a, uint64_t transfer, int64_t timeout_ms) {
            return status_dict(without_gil([&] { return a.wait(transfer, Milliseconds(timeout_ms)); }));
          },
          py::arg("transfer"), py::arg("timeout_ms"))
      .def(
          "is_done",
          // With the GIL: it takes no longer than giving the GIL away and taking it back.
          [](const Agent& a, uint64_t transfer) { return a.state(transfer) == kv::TransferState::kDone; },
          py::arg("transfer"),
          "Whether all bytes are in place; for polling, where check() would make a dict each time.")
      .def("completion_fd", &Agent::completion_fd, py::arg("transfer"), py::call_guard<py::gil_scoped_release>())
      .def("cancel", &Agent::cancel, py::arg("transfer"), py::call_guard<py::gil_scoped_release>())
      .def(
          "release",
          [](Agent& a, uint64_t transfer) { return outcome(without_gil([&] { return a.release(transfer); })); },
          py::arg("transfer"))
      .def(
          "times",
          [](const Agent& a, uint64_t transfer) { return times_dict(without_gil([&] { return a.times(transfer); })); },
          py::arg("transfer"));
}

}  // namespace

void bind_kv_agent(py::module_& m) {
  py::class_<Agent> agent(m, "KvAgent");
  agent.def(py::init(&make), py::kw_only(), py::arg("name"))
      .def("config", [](const Agent& a) { return config_dict(a.config()); })
      .def("endpoint", &Agent::endpoint)
      .def("incarnation", [](const Agent& a) { return key_bytes(a.incarnation()); })
      .def(
          "register_region",
          [](Agent& a, uint64_t address, uint64_t bytes, const std::string& name, int core, int fd, uint64_t fd_offset,
             bool readable, bool writable) {
            const kv::RegionDescription description{
                reinterpret_cast<void*>(address), bytes, name, core, fd, fd_offset, readable, writable};
            return without_gil([&] { return a.register_region(description); });
          },
          py::arg("address"), py::arg("bytes"), py::arg("name") = "", py::arg("core") = -1, py::arg("fd") = -1,
          py::arg("fd_offset") = 0, py::arg("readable") = true, py::arg("writable") = true)
      .def(
          "deregister",
          [](Agent& a, uint32_t region) { return outcome(without_gil([&] { return a.deregister(region); })); },
          py::arg("region"))
      .def(
          "describe_kv",
          [](Agent& a, const kv::KvLayout& layout, const std::vector<uint32_t>& regions) {
            without_gil([&] { a.describe_kv(layout, regions); });
          },
          py::arg("layout"), py::arg("regions"));
  bind_peers(agent);
  bind_kv_prepare(m, agent);
  bind_transfers(agent);
  agent.def("prometheus", &Agent::prometheus, py::call_guard<py::gil_scoped_release>())
      .def("stats_json", &Agent::stats_json, py::call_guard<py::gil_scoped_release>())
      .def("dump_in_flight", &Agent::dump_in_flight, py::call_guard<py::gil_scoped_release>())
      .def("healthy",
           [](const Agent& a) {
             std::string why;
             const bool healthy = without_gil([&] { return a.healthy(&why); });
             return py::make_tuple(healthy, why);
           })
      .def(
          "drain",
          [](Agent& a, int64_t timeout_ms) {
            return outcome(without_gil([&] { return a.drain(Milliseconds(timeout_ms)); }));
          },
          py::arg("timeout_ms"))
      .def("resume", &Agent::resume, py::call_guard<py::gil_scoped_release>())
      .def("close", &Agent::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace nxl::bindings
