// SPDX-License-Identifier: Apache-2.0
// What an agent counts, and its two renderings: Prometheus text and JSON.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/api.h"
#include "kv/lease_table.h"
#include "kv/transfer.h"

namespace nxl::kv {

// Microseconds, in buckets fitted to 10 us .. 10 s.
class NXL_API Histogram {
 public:
  static constexpr std::array<double, 19> kBounds{10,  20,  50,  100, 200, 500, 1e3, 2e3, 5e3, 1e4,
                                                  2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7};
  void add(double us);
  const std::array<uint64_t, kBounds.size() + 1>& counts() const { return counts_; }
  double sum() const { return sum_; }
  uint64_t total() const { return total_; }

 private:
  std::array<uint64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
  uint64_t total_ = 0;
};

struct TransferCounters {
  std::array<uint64_t, kCauseCount> ended{};  // by cause; kNone: done
  uint64_t bytes = 0;                         // of those that are done
};

// Guarded by the agent's mutex.
class NXL_API Metrics {
 public:
  // Counters of one (peer, provider, kind); the reference stays good. Beyond kMaxSeries all share one series.
  TransferCounters& transfers(const std::string& peer, const std::string& provider, TransferKind kind);

  std::array<Histogram, 3> total_us;  // by TransferKind
  std::array<Histogram, 3> queue_us;
  std::array<Histogram, 3> wire_us;
  std::array<Histogram, 3> flush_us;
  std::array<Histogram, 3> ack_us;
  uint64_t completed_in_post = 0;
  uint64_t refused_posts = 0;  // a limit was reached
  uint64_t notifications_sent = 0, notifications_received = 0, notifications_repeated = 0, notifications_lost = 0;
  uint64_t notifications_deferred = 0;  // the queue here was full, or one before it is missing
  uint64_t handshakes_refused = 0, sessions_up = 0, sessions_lost = 0, reconnects = 0;
  uint64_t write_queries = 0;  // a target was asked again because its status did not come

 private:
  friend struct Report;
  static constexpr size_t kMaxSeries = 4096;
  using Series = std::tuple<std::string, std::string, TransferKind>;
  std::map<Series, TransferCounters> transfers_;
};

// Metrics and gauges at one moment.
struct NXL_API Report {
  const Metrics& metrics;
  LeaseTable::Counts leases;
  std::string agent;
  uint64_t in_flight = 0, bytes_in_flight = 0;
  double oldest_in_flight_s = 0;
  uint64_t quarantined_transfers = 0, quarantined_bytes = 0;  // ended, but their memory is not to be reused yet
  uint64_t regions = 0, transfers = 0;
  std::array<uint64_t, 4> peers{};  // by PeerState
  uint64_t waiting_notifications = 0, unacknowledged_notifications = 0;
  bool healthy = true, draining = false;
  std::string why;

  std::string prometheus() const;
  std::string json() const;
};

// `text` as a JSON string with its quotes. Bytes that are not printable ASCII become \u00XX.
NXL_API std::string json_string(std::string_view text);

}  // namespace nxl::kv
