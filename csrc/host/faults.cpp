// SPDX-License-Identifier: Apache-2.0
// Parsing and counting of injected faults.
#include "host/faults.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include "host/environment.h"
#include "host/log.h"

namespace nxl::host {
namespace {

constexpr NRT_STATUS kStatuses[] = {NRT_SUCCESS,
                                    NRT_FAILURE,
                                    NRT_INVALID,
                                    NRT_INVALID_HANDLE,
                                    NRT_RESOURCE,
                                    NRT_TIMEOUT,
                                    NRT_HW_ERROR,
                                    NRT_QUEUE_FULL,
                                    NRT_LOAD_NOT_ENOUGH_NC,
                                    NRT_UNSUPPORTED_NEFF_VERSION,
                                    NRT_FAIL_HOST_MEM_ALLOC,
                                    NRT_UNINITIALIZED,
                                    NRT_CLOSED,
                                    NRT_QUEUE_EMPTY,
                                    NRT_EXEC_UNIT_UNRECOVERABLE,
                                    NRT_EXEC_BAD_INPUT,
                                    NRT_EXEC_COMPLETED_WITH_NUM_ERR,
                                    NRT_EXEC_COMPLETED_WITH_ERR,
                                    NRT_EXEC_NC_BUSY,
                                    NRT_EXEC_OOB,
                                    NRT_COLL_PENDING,
                                    NRT_EXEC_HW_ERR_COLLECTIVES,
                                    NRT_EXEC_HW_ERR_HBM_UE,
                                    NRT_EXEC_HW_ERR_NC_UE,
                                    NRT_EXEC_HW_ERR_DMA_ABORT,
                                    NRT_EXEC_SW_NQ_OVERFLOW,
                                    NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE,
                                    NRT_NETWORK_PROXY_FAILURE};

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] != b[j])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

template <typename Names>
std::string nearest(std::string_view name, const Names& names) {
  return *std::min_element(std::begin(names), std::end(names), [&](std::string_view a, std::string_view b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
}

std::string_view without_prefix(std::string_view status) {
  return status.substr(0, 4) == "NRT_" ? status.substr(4) : status;
}

}  // namespace

Faults& Faults::instance() {
  static Faults* faults = [] {
    const char* text = std::getenv("NEURON_LIBTORCH_HOST_FAULTS");
    auto* made = new Faults(text ? text : "");
    for (const std::string& warning : made->warnings()) log_line(LogLevel::kWarning, warning);
    return made;
  }();
  return *faults;
}

Faults::Faults(std::string_view text) {
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma != 0) parse_clause(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
}

void Faults::parse_clause(std::string_view clause) {
  const auto warn = [&](const std::string& reason) {
    warnings_.push_back("NEURON_LIBTORCH_HOST_FAULTS: '" + std::string(clause) + "' is left out: " + reason);
  };
  const auto find_call = [&](std::string_view name) -> std::optional<Call> {
    const auto found = std::find(std::begin(kCallNames), std::end(kCallNames), name);
    if (found != std::end(kCallNames)) return static_cast<Call>(found - std::begin(kCallNames));
    warn("no call is named '" + std::string(name) + "'; the nearest is '" + nearest(name, kCallNames) + "'");
    return std::nullopt;
  };
  const size_t colon = clause.find(':');
  if (colon == std::string_view::npos) return warn("it is neither CALL:STATUS[@N] nor delay_ms:CALL=MS");
  const std::string_view head = clause.substr(0, colon);
  std::string_view tail = clause.substr(colon + 1);

  if (head == "delay_ms") {
    const size_t equals = tail.find('=');
    const auto delay = equals == tail.npos ? std::nullopt : parse_integer(tail.substr(equals + 1));
    if (!delay || *delay < 0 || *delay > 60000) return warn("a delay is CALL=MS with MS from 0 to 60000");
    if (const auto call = find_call(tail.substr(0, equals)))
      clauses_.push_back({*call, NRT_SUCCESS, 0, static_cast<int>(*delay)});
    return;
  }

  uint64_t nth = 0;
  if (const size_t at = tail.find('@'); at != tail.npos) {
    const auto number = parse_integer(tail.substr(at + 1));
    if (!number || *number < 1) return warn("the number after @ counts calls from 1");
    nth = static_cast<uint64_t>(*number);
    tail = tail.substr(0, at);
  }
  const auto call = find_call(head);
  if (!call) return;
  std::vector<std::string> names;
  for (const NRT_STATUS status : kStatuses) {
    names.emplace_back(without_prefix(nrt_get_status_as_str(status)));
    if (names.back() == without_prefix(tail)) {
      clauses_.push_back({*call, status, nth, 0});
      return;
    }
  }
  warn("no status is named '" + std::string(tail) + "'; the nearest is '" + nearest(without_prefix(tail), names) + "'");
}

NRT_STATUS Faults::inject_slow(Call call) {
  const uint64_t count = counts_[static_cast<int>(call)].fetch_add(1, std::memory_order_relaxed) + 1;
  NRT_STATUS status = NRT_SUCCESS;
  for (const Clause& clause : clauses_) {
    if (clause.call != call || (clause.nth != 0 && clause.nth != count)) continue;
    if (clause.delay_ms != 0) std::this_thread::sleep_for(std::chrono::milliseconds(clause.delay_ms));
    if (status == NRT_SUCCESS) status = clause.status;
  }
  if (status != NRT_SUCCESS) {
    log_parts(LogLevel::kInfo, call_name(call), ": injected ", nrt_get_status_as_str(status), " on call ", count);
  }
  return status;
}

}  // namespace nxl::host
