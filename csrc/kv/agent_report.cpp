// SPDX-License-Identifier: Apache-2.0
// What an agent says about itself: metrics, health, and what is in flight.
#include <sstream>

#include "core/error.h"
#include "kv/agent_core.h"

namespace nxl::kv {
namespace {

constexpr uint64_t kQuarantineShare = 4;  // health turns red when this part of max_bytes_in_flight cannot be reused

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void AgentCore::health(bool* healthy, std::string* why) const {
  *healthy = !closed_;
  *why = closed_ ? "the agent was closed" : "";
  const auto bad = [&](const std::string& what) {
    *healthy = false;
    *why += (why->empty() ? "" : "; ") + what;
  };
  if (draining_ && !closed_) bad("it drains: no new transfers until resume()");
  for (const auto& [id, peer] : peers_) {
    if (peer->endpoint.empty() || !peer->wanted || peer->state == PeerState::kUp) continue;
    bad(detail::concat("peer ", peer->name.empty() ? peer->endpoint : peer->name, " is ", state_name(peer->state),
                       peer->why.empty() ? "" : ": ", peer->why));
  }
  uint64_t quarantined = 0;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->machine.terminal() && !transfer->machine.quiesced()) quarantined += transfer->bytes;
  }
  if (quarantined > config_.max_bytes_in_flight / kQuarantineShare) {
    bad(detail::concat(quarantined, " bytes are quarantined: their peers do not say that they have stopped"));
  }
}

bool AgentCore::healthy(std::string* why) const {
  const Lock lock(mutex_);
  bool result = false;
  std::string text;
  health(&result, &text);
  if (why != nullptr) *why = text;
  return result;
}

Report AgentCore::report() const {
  Report r{.metrics = metrics_, .leases = leases_.counts(), .agent = config_.name, .why = {}};
  r.in_flight = in_flight_;
  r.bytes_in_flight = bytes_in_flight_;
  const Time now = Clock::now();
  for (const auto& [id, transfer] : transfers_) {
    const TransferMachine& m = transfer->machine;
    if (!m.in_flight()) continue;
    r.oldest_in_flight_s = std::max(r.oldest_in_flight_s, seconds(now - transfer->posted_at));
    if (!m.terminal()) continue;
    ++r.quarantined_transfers;
    r.quarantined_bytes += transfer->bytes;
  }
  r.regions = regions_.snapshot()->size();
  r.transfers = transfers_.size();
  for (const auto& [id, peer] : peers_) {
    ++r.peers[static_cast<size_t>(peer->state)];
    r.unacknowledged_notifications += peer->outbox.size();
  }
  r.waiting_notifications = inbox_.size();
  r.draining = draining_;
  health(&r.healthy, &r.why);
  return r;
}

std::string AgentCore::prometheus() const {
  const Lock lock(mutex_);
  return report().prometheus();
}

std::string AgentCore::stats_json() const {
  const Lock lock(mutex_);
  return report().json();
}

std::string AgentCore::dump_in_flight() const {
  const Lock lock(mutex_);
  std::ostringstream out;
  const Time now = Clock::now();
  const auto line = [&](const Transfer& t) {
    const TransferMachine& m = t.machine;
    out << kind_name(t.kind) << " transfer " << (t.kind == TransferKind::kServe ? t.request : t.id) << " of "
        << t.link->session->label() << " by " << (t.channel ? t.channel->provider() : "peer") << ": "
        << state_name(m.state()) << (m.quiesced() ? "" : ", not quiesced");
    if (m.cause() != Cause::kNone) out << ", " << cause_name(m.cause()) << " (" << m.message() << ")";
    out << ", " << t.progress.bytes_done.load() << " of " << t.bytes << " bytes in " << t.runs.size() << " runs, age "
        << seconds(now - t.posted_at) << " s, deadline in " << seconds(t.deadline - now) << " s";
    if (t.lease && t.kind == TransferKind::kRead) out << ", lease " << t.lease->id;
    out << '\n';
  };
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->machine.in_flight()) line(*transfer);
  }
  for (const auto& [id, peer] : peers_) {
    if (!peer->link) continue;
    for (const auto& [request, transfer] : peer->link->served) line(*transfer);
  }
  return out.str();
}

}  // namespace nxl::kv
