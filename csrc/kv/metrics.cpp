// SPDX-License-Identifier: Apache-2.0
// Counting and rendering. One list of gauges and counters serves both renderings.
#include "kv/metrics.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace nxl::kv {
namespace {

struct Scalar {
  const char* name;
  const char* help;
  bool counter;
  double value;
};

std::vector<Scalar> scalars(const Report& r) {
  const Metrics& m = r.metrics;
  const auto d = [](uint64_t value) { return static_cast<double>(value); };
  return {
      {"healthy", "1 when every peer that was asked for is up", false, r.healthy ? 1.0 : 0.0},
      {"draining", "1 from drain to resume: no new transfers", false, r.draining ? 1.0 : 0.0},
      {"transfers_in_flight", "posted and not yet at rest", false, d(r.in_flight)},
      {"bytes_in_flight", "bytes of those", false, d(r.bytes_in_flight)},
      {"oldest_in_flight_seconds", "age of the oldest of those", false, r.oldest_in_flight_s},
      {"quarantined_transfers", "ended, but bytes may still move", false, d(r.quarantined_transfers)},
      {"quarantined_bytes", "bytes of those", false, d(r.quarantined_bytes)},
      {"regions", "registered regions", false, d(r.regions)},
      {"transfers_held", "transfers prepared and not released", false, d(r.transfers)},
      {"notifications_waiting", "received and not polled", false, d(r.waiting_notifications)},
      {"notifications_unacknowledged", "sent or to be sent", false, d(r.unacknowledged_notifications)},
      {"leases_live", "granted and not ended", false, d(r.leases.live)},
      {"leases_granted_total", "leases granted", true, d(r.leases.granted)},
      {"leases_renewed_total", "renewals", true, d(r.leases.renewed)},
      {"leases_read_total", "leases that ended because all readers finished", true, d(r.leases.finished)},
      {"leases_expired_total", "leases that ran out", true, d(r.leases.expired)},
      {"leases_released_total", "leases that the producer took back", true, d(r.leases.released)},
      {"lease_notifications_repeated_total", "a reader finished twice", true, d(r.leases.repeated)},
      {"lease_notifications_late_total", "a reader finished after the end", true, d(r.leases.late)},
      {"lease_notifications_refused_total", "wrong key, or not a reader of the lease", true, d(r.leases.not_readers)},
      {"completed_in_post_total", "transfers that ended inside post", true, d(m.completed_in_post)},
      {"refused_posts_total", "posts refused by a limit", true, d(m.refused_posts)},
      {"notifications_sent_total", "notifications queued for peers", true, d(m.notifications_sent)},
      {"notifications_received_total", "notifications accepted", true, d(m.notifications_received)},
      {"notifications_repeated_total", "received again and dropped", true, d(m.notifications_repeated)},
      {"notifications_deferred_total", "not accepted: queue full, or one before is missing", true,
       d(m.notifications_deferred)},
      {"notifications_lost_total", "for an incarnation that is gone", true, d(m.notifications_lost)},
      {"handshakes_refused_total", "handshakes refused by either side", true, d(m.handshakes_refused)},
      {"sessions_up_total", "sessions that came up", true, d(m.sessions_up)},
      {"sessions_lost_total", "sessions that ended", true, d(m.sessions_lost)},
      {"reconnects_total", "sessions opened again by the agent", true, d(m.reconnects)},
      {"write_queries_total", "targets asked again for a missing status", true, d(m.write_queries)},
  };
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

std::string label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void Histogram::add(double us) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), us) - kBounds.begin();
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += us;
  ++total_;
}

TransferCounters& Metrics::transfers(const std::string& peer, const std::string& provider, TransferKind kind) {
  Series series{peer, provider, kind};
  if (const auto it = transfers_.find(series); it != transfers_.end()) return it->second;
  if (transfers_.size() >= kMaxSeries) series = {"other", "other", kind};
  return transfers_[series];
}

std::string Report::prometheus() const {
  std::ostringstream out;
  const std::string who = "agent=\"" + label(agent) + "\"";
  for (const Scalar& s : scalars(*this)) {
    out << "# HELP nxl_kv_" << s.name << ' ' << s.help << "\n# TYPE nxl_kv_" << s.name
        << (s.counter ? " counter\n" : " gauge\n");
    out << "nxl_kv_" << s.name << '{' << who << "} " << number(s.value) << '\n';
  }
  out << "# HELP nxl_kv_peers peers by state\n# TYPE nxl_kv_peers gauge\n";
  for (size_t i = 0; i < peers.size(); ++i) {
    out << "nxl_kv_peers{" << who << ",state=\"" << state_name(static_cast<PeerState>(i)) << "\"} " << peers[i] << '\n';
  }
  out << "# HELP nxl_kv_transfers_total transfers that ended, by cause\n# TYPE nxl_kv_transfers_total counter\n";
  const auto each = [&](auto&& emit) {
    for (const auto& [series, counters] : metrics.transfers_) {
      const auto& [peer, provider, kind] = series;
      emit(who + ",peer=\"" + label(peer) + "\",provider=\"" + label(provider) + "\",op=\"" + kind_name(kind) + "\"",
           counters);
    }
  };
  each([&](const std::string& labels, const TransferCounters& counters) {
    for (size_t i = 0; i < kCauseCount; ++i) {
      if (counters.ended[i] == 0) continue;
      out << "nxl_kv_transfers_total{" << labels << ",cause=\"" << (i == 0 ? "done" : cause_name(static_cast<Cause>(i)))
          << "\"} " << counters.ended[i] << '\n';
    }
  });
  out << "# HELP nxl_kv_bytes_total bytes of transfers that are done\n# TYPE nxl_kv_bytes_total counter\n";
  each([&](const std::string& labels, const TransferCounters& counters) {
    out << "nxl_kv_bytes_total{" << labels << "} " << counters.bytes << '\n';
  });
  const auto histograms = [&](const char* name, const char* help, const std::array<Histogram, 3>& set) {
    out << "# HELP nxl_kv_" << name << ' ' << help << "\n# TYPE nxl_kv_" << name << " histogram\n";
    for (size_t kind = 0; kind < set.size(); ++kind) {
      const std::string labels = who + ",op=\"" + kind_name(static_cast<TransferKind>(kind)) + "\"";
      uint64_t below = 0;
      for (size_t i = 0; i < Histogram::kBounds.size(); ++i) {
        below += set[kind].counts()[i];
        out << "nxl_kv_" << name << "_bucket{" << labels << ",le=\"" << number(Histogram::kBounds[i] / 1e6) << "\"} "
            << below << '\n';
      }
      out << "nxl_kv_" << name << "_bucket{" << labels << ",le=\"+Inf\"} " << set[kind].total() << '\n';
      out << "nxl_kv_" << name << "_sum{" << labels << "} " << number(set[kind].sum() / 1e6) << '\n';
      out << "nxl_kv_" << name << "_count{" << labels << "} " << set[kind].total() << '\n';
    }
  };
  histograms("transfer_seconds", "post to the terminal state", metrics.total_us);
  histograms("queue_seconds", "post to the first byte", metrics.queue_us);
  histograms("wire_seconds", "moving bytes", metrics.wire_us);
  histograms("flush_seconds", "making what arrived visible, where the provider needs that", metrics.flush_us);
  histograms("ack_seconds", "read: done to the peer's acknowledgement; write: request and status on their way",
             metrics.ack_us);
  return out.str();
}

std::string Report::json() const {
  std::ostringstream out;
  out << "{\"agent\": " << json_string(agent) << ", \"why\": " << json_string(why);
  for (const Scalar& s : scalars(*this)) out << ", \"" << s.name << "\": " << number(s.value);
  out << ", \"peers\": {";
  for (size_t i = 0; i < peers.size(); ++i) {
    out << (i == 0 ? "" : ", ") << '"' << state_name(static_cast<PeerState>(i)) << "\": " << peers[i];
  }
  out << "}, \"transfers\": [";
  bool first = true;
  for (const auto& [series, counters] : metrics.transfers_) {
    const auto& [peer, provider, kind] = series;
    out << (std::exchange(first, false) ? "" : ", ") << "{\"peer\": " << json_string(peer)
        << ", \"provider\": " << json_string(provider) << ", \"op\": \"" << kind_name(kind)
        << "\", \"bytes\": " << counters.bytes << ", \"done\": " << counters.ended[0];
    for (size_t i = 1; i < kCauseCount; ++i) {
      out << ", \"" << cause_name(static_cast<Cause>(i)) << "\": " << counters.ended[i];
    }
    out << '}';
  }
  out << "]}";
  return out.str();
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace nxl::kv
