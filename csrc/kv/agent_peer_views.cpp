// SPDX-License-Identifier: Apache-2.0
// Peers as callers see them: who is there, what they have announced, and letting one go.
#include "core/error.h"
#include "kv/agent_core.h"

namespace nxl::kv {

AgentCore::PeerPtr AgentCore::find(PeerId peer) const {
  const auto it = peers_.find(peer);
  NXL_CHECK(it != peers_.end(), kInvalid, "peer ", peer, " is unknown or was replaced by a new incarnation");
  return it->second;
}

std::shared_ptr<Link> AgentCore::link_up(PeerId peer) const {
  check_open();
  const PeerPtr entry = find(peer);
  NXL_CHECK(entry->link && !entry->link->down, kUnavailable, "peer ",
            entry->name.empty() ? entry->endpoint : entry->name, " is ", state_name(entry->state),
            entry->why.empty() ? "" : ": ", entry->why);
  return entry->link;
}

PeerId AgentCore::find_peer(const std::string& name) const {
  const Lock lock(mutex_);
  PeerId found = 0;
  for (const auto& [id, peer] : peers_) {
    if (peer->name != name) continue;
    if (peer->state == PeerState::kUp) return id;
    found = id;
  }
  return found;
}

PeerInfo AgentCore::info(const PeerEntry& peer) const {
  PeerInfo result{peer.id, peer.name, peer.endpoint, peer.incarnation, peer.state, peer.why, {}, peer.reconnects};
  if (peer.link) {
    for (const auto& channel : peer.link->channels) result.providers.emplace_back(channel->provider());
  }
  return result;
}

PeerInfo AgentCore::peer_info(PeerId peer) const {
  const Lock lock(mutex_);
  return info(*find(peer));
}

std::vector<PeerInfo> AgentCore::peers() const {
  const Lock lock(mutex_);
  std::vector<PeerInfo> result;
  for (const auto& [id, peer] : peers_) result.push_back(info(*peer));
  return result;
}

std::vector<RemoteRegion> AgentCore::peer_regions(PeerId peer) const {
  std::shared_ptr<const RemoteRegionMap> regions;
  {
    const Lock lock(mutex_);
    regions = link_up(peer)->regions;
  }
  std::vector<RemoteRegion> result;
  for (const auto& [index, region] : *regions) result.push_back(*region);
  return result;
}

bool AgentCore::peer_layout(PeerId peer, KvLayout* layout, std::vector<uint32_t>* regions) const {
  std::shared_ptr<const DescribedKv> described;
  {
    const Lock lock(mutex_);
    described = link_up(peer)->remote_kv;
  }
  if (!described) return false;
  *layout = described->layout;
  *regions = described->regions;
  return true;
}

void AgentCore::disconnect(PeerId peer) {
  Lock lock(mutex_);
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  const PeerPtr entry = it->second;
  entry->wanted = false;
  const auto link = entry->link;
  if (link) {
    // At once, not when the control thread comes to it: the caller may count on the peer being gone.
    link->down = true;
    std::vector<TransferPtr> hit;
    for (const auto& [id, transfer] : transfers_) {
      if (transfer->link == link) hit.push_back(transfer);
    }
    for (const TransferPtr& transfer : hit) stop(transfer, Cause::kPeerLost, link->peer_name + ": disconnected");
  }
  forget_notifications(*entry);
  peers_.erase(it);
  entry->state = PeerState::kDown;
  peers_changed_.notify_all();
  loop_->call([this, entry] {
    if (entry->timer != 0) loop_->cancel(entry->timer);
    if (const auto session = entry->session) session->end("the peer disconnected", true);
  });
}

}  // namespace nxl::kv
