// SPDX-License-Identifier: Apache-2.0
// Peers: connecting and accepting, sessions that come up and are lost, reconnects, eviction of old incarnations.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/log.h"
#include "kv/agent_core.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {
namespace {

constexpr Milliseconds kFirstBackoff{100};
constexpr Milliseconds kLastBackoff{10000};
constexpr size_t kMaxHandshaking = 64;                 // accepted connections that have not proved themselves
constexpr std::chrono::milliseconds kLastWords{1000};  // for a peer to read why a session ended

}  // namespace

void AgentCore::listen() {
  listener_ = listen_at(address_);
  loop_->call([this] { loop_->watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept_ready(); }); });
}

void AgentCore::accept_ready() {
  while (true) {
    GuardedFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    const auto handshaking = static_cast<size_t>(std::count_if(sessions_.begin(), sessions_.end(), [](const auto& s) {
      return !s.second->initiator() && s.second->state() < Session::State::kMetadata;
    }));
    if (handshaking >= kMaxHandshaking) continue;  // closed again; the connector tries later
    std::string from = "unix peer";
    if (address_.unix_socket) {
      const PeerCredentials peer = peer_credentials(socket.get());
      if (peer.uid != ::geteuid()) {
        NXL_LOG(kWarning, "kv agent ", config_.name, ": user ", peer.uid, " was turned away from ", endpoint());
        continue;
      }
      from = "process " + std::to_string(peer.pid);
    } else {
      tune_tcp(socket.get());
      from = "tcp:" + remote_host(socket.get());
    }
    auto session = std::make_shared<Session>(*loop_, static_cast<SessionHost&>(*this), session_config(),
                                             std::move(socket), false, address_.unix_socket, std::move(from));
    sessions_.emplace(session.get(), session);
    {
      const Lock lock(mutex_);
      ++live_sessions_;
    }
    session->start();
  }
}

PeerId AgentCore::connect(const std::string& endpoint, Milliseconds deadline) {
  const Address address = Address::parse(endpoint);
  NXL_CHECK(!address.off_host() || !key_.empty() || config_.insecure, kInvalid, "endpoint ", endpoint,
            " is on another host: set key_file on both agents (insecure=True goes without, for tests)");
  const Time until = Clock::now() + deadline;
  const Address numeric = address.numeric();  // here, so that a slow resolver never holds up the control thread
  Lock lock(mutex_);
  check_open();
  PeerPtr peer;
  for (const auto& [id, known] : peers_) {
    if (known->wanted && known->endpoint == endpoint) peer = known;
  }
  const bool fresh = peer == nullptr;
  if (fresh) {
    // One that went away for good makes room for its successor at the same address.
    std::erase_if(peers_, [&](const auto& known) {
      return known.second->endpoint == endpoint && known.second->state == PeerState::kDown;
    });
    NXL_CHECK(peers_.size() < config_.max_peers, kUnavailable, "connect to ", endpoint, ": max_peers is ",
              config_.max_peers, "; disconnect some or raise it");
    peer = std::make_shared<PeerEntry>(config_.max_notification_bytes);
    peer->id = next_peer_++;
    peer->endpoint = endpoint;
    peer->address = numeric;
    peers_.emplace(peer->id, peer);
    loop_->call([this, peer] { open_session(peer); });
  }
  const auto settled = [&] { return peer->state == PeerState::kUp || closed_ || !peer->wanted || peer->refused; };
  peers_changed_.wait_until(lock, until, settled);
  if (peer->state == PeerState::kUp) return peer->id;
  const bool refused = peer->refused;
  const std::string why = peer->why.empty() ? "no answer" : peer->why;
  if (fresh) {
    peer->wanted = false;
    peers_.erase(peer->id);
    loop_->call([peer] {
      if (peer->session) peer->session->end("the connector gave up", true);
    });
  }
  check_open();
  NXL_CHECK(!refused, kInvalid, "connect to ", endpoint, ": ", why);
  throw_error(ErrorKind::kUnavailable,
              detail::concat("connect to ", endpoint, ": not up after ", deadline.count(), " ms: ", why));
}

void AgentCore::open_session(const PeerPtr& peer) {
  Lock lock(mutex_);
  peer->timer = 0;
  if (!peer->wanted || closed_) return;
  peer->state = peer->state == PeerState::kDown ? PeerState::kDown : PeerState::kHandshaking;
  lock.unlock();
  try {
    auto session =
        std::make_shared<Session>(*loop_, static_cast<SessionHost&>(*this), session_config(),
                                  begin_connect(peer->address), true, peer->address.unix_socket, peer->endpoint);
    sessions_.emplace(session.get(), session);
    session_peers_.emplace(session.get(), peer);
    lock.lock();
    ++live_sessions_;
    peer->session = session;
    lock.unlock();
    session->start();
  } catch (const Error& error) {
    if (!lock.owns_lock()) lock.lock();
    peer->why = error.what();
    schedule_reconnect(peer, lock);
  }
}

void AgentCore::schedule_reconnect(const PeerPtr& peer, Lock&) {
  peer->state = PeerState::kDown;
  peers_changed_.notify_all();
  if (!peer->wanted || closed_ || peer->timer != 0 || peer->endpoint.empty()) return;
  // A refusal lasts until somebody changes a configuration: no hurry.
  peer->backoff = peer->refused && peer->ever_up ? kLastBackoff
                  : peer->backoff.count() == 0   ? kFirstBackoff
                                                 : std::min(peer->backoff * 2, kLastBackoff);
  // Spread by a quarter, so that the peers of a restarted agent do not come back at one moment.
  const Milliseconds spread(static_cast<int64_t>(random_id() % static_cast<uint64_t>(peer->backoff.count() / 4 + 1)));
  peer->timer = loop_->at(Clock::now() + peer->backoff + spread, [this, peer] { open_session(peer); });
}

void AgentCore::on_proved(Session& session) {
  NXL_CHECK(session.name() != config_.name || session.incarnation() == incarnation_, kInvalid, "name: both agents are ",
            config_.name, "; every agent needs its own");
  std::vector<PeerPtr> replaced;
  std::shared_ptr<Session> superseded;
  {
    Lock lock(mutex_);
    PeerPtr mine;
    for (const auto& [id, peer] : peers_) {
      if (peer->name != session.name()) continue;
      if (peer->incarnation != session.incarnation()) {
        const auto at = session_peers_.find(&session);
        if (at == session_peers_.end() || at->second != peer) replaced.push_back(peer);
      } else if (peer->endpoint.empty()) {
        mine = peer;
      }
    }
    if (!session.initiator()) {
      if (mine) {
        superseded = mine->session;
      } else {
        // Accepted peers that are gone make room first.
        for (auto it = peers_.begin(); peers_.size() >= config_.max_peers && it != peers_.end();) {
          const bool gone = it->second->endpoint.empty() && it->second->state == PeerState::kDown;
          it = gone ? peers_.erase(it) : std::next(it);
        }
        NXL_CHECK(peers_.size() < config_.max_peers, kUnavailable, "max_peers of ", config_.name, " is ",
                  config_.max_peers);
        mine = std::make_shared<PeerEntry>(config_.max_notification_bytes);
        mine->id = next_peer_++;
        mine->name = session.name();
        mine->incarnation = session.incarnation();
        peers_.emplace(mine->id, mine);
      }
      mine->session = session.shared_from_this();
      session_peers_[&session] = mine;
    } else {
      const PeerPtr peer = session_peers_.at(&session);
      if (peer->incarnation != Key{} && peer->incarnation != session.incarnation()) {
        forget_notifications(*peer);
        NXL_LOG(kInfo, "kv agent ", config_.name, ": ", session.label(), " is a new incarnation");
      }
      peer->name = session.name();
      peer->incarnation = session.incarnation();
    }
  }
  if (superseded) superseded->end("superseded by a later connection of the same agent", true);
  for (const PeerPtr& peer : replaced) evict(peer, "replaced by a new incarnation of " + session.name());
}

void AgentCore::evict(const PeerPtr& peer, const std::string& why) {
  const auto session = peer->session;
  if (session) session->end(why, peer->endpoint.empty());
  if (!peer->endpoint.empty()) return;  // it reconnects to whoever is there now
  const Lock lock(mutex_);
  peer->wanted = false;
  forget_notifications(*peer);
  peers_.erase(peer->id);
}

MetadataMessage AgentCore::local_metadata(int* lease_descriptor) {
  MetadataMessage message;
  for (const auto& provider : providers_) message.providers.emplace_back(provider->name(), provider->advertise());
  message.lease_table_address = leases_.address();
  message.lease_table_bytes = leases_.bytes();
  *lease_descriptor = leases_.descriptor();
  const Lock lock(mutex_);
  if (local_kv_) message.layout = LayoutMessage{local_kv_->layout, local_kv_->regions};
  return message;
}

std::shared_ptr<Link> AgentCore::link_of(const Session& session) const {
  const auto it = session_links_.find(&session);
  return it == session_links_.end() ? nullptr : it->second;
}

void AgentCore::on_metadata(Session& session) {
  const PeerPtr peer = session_peers_.at(&session);
  session_links_[&session] = make_link(session, peer);
}

void AgentCore::on_up(Session& session) {
  const PeerPtr peer = session_peers_.at(&session);
  const auto link = link_of(session);
  const Lock lock(mutex_);
  peer->link = link;
  peer->state = PeerState::kUp;
  peer->why.clear();
  peer->refused = false;
  peer->backoff = Milliseconds{0};
  ++metrics_.sessions_up;
  if (std::exchange(peer->ever_up, true)) {
    ++peer->reconnects;
    ++metrics_.reconnects;
  }
  peer->outbox.new_session();
  send_notifications(*peer);
  peers_changed_.notify_all();
  NXL_LOG(kInfo, "kv agent ", config_.name, ": ", session.label(), " is up by ", link->channels.front()->provider());
}

void AgentCore::on_heard(Session& session, bool suspect) {
  const PeerPtr peer = session_peers_.at(&session);
  const Lock lock(mutex_);
  peer->state = suspect ? PeerState::kSuspect : PeerState::kUp;
  peer->why = suspect ? "nothing was heard from it for a while" : "";
  peers_changed_.notify_all();
}

void AgentCore::on_lost(Session& session) {
  const auto link = link_of(session);
  const auto known = session_peers_.find(&session);
  if (link) {
    const Lock lock(mutex_);
    link->down = true;
    std::vector<TransferPtr> hit;
    for (const auto& [id, transfer] : transfers_) {
      if (transfer->link == link) hit.push_back(transfer);
    }
    for (const auto& [request, transfer] : link->served) hit.push_back(transfer);
    for (const TransferPtr& transfer : hit) {
      stop(transfer, Cause::kPeerLost, link->peer_name + ": " + session.why());
    }
    if (link->workers) retired_workers_.push_back(std::move(link->workers));
    ++metrics_.sessions_lost;
  }
  if (link) {
    for (const auto& channel : link->channels) channel->shut_down();
  }
  if (known != session_peers_.end()) {
    const PeerPtr peer = known->second;
    Lock lock(mutex_);
    if (session.refused()) ++metrics_.handshakes_refused;
    if (peer->session.get() == &session) {
      if (peer->link == link) peer->link.reset();
      peer->why = session.why();
      peer->refused = session.refused();
      if (session.final()) peer->wanted = false;
      if (peer->wanted || peer->ever_up) {
        NXL_LOG(kInfo, "kv agent ", config_.name, ": ", session.label(), " is down: ", session.why());
      }
      peer->session.reset();
      schedule_reconnect(peer, lock);
    }
  } else {
    const Lock lock(mutex_);
    ++metrics_.handshakes_refused;
    ++turned_away_;
    // One line a second: whoever knocks without a key does not fill the disk.
    if (const Time now = Clock::now(); now - warned_at_ >= std::chrono::seconds(1)) {
      NXL_LOG(kWarning, "kv agent ", config_.name, ": ", session.label(), " was turned away: ", session.why(), " (",
              std::exchange(turned_away_, 0), " since the last line)");
      warned_at_ = now;
    }
  }
  if (session.peer_closed()) on_drained(session);
  close_when_quiet(session);
}

void AgentCore::on_drained(Session& session) {
  const auto link = link_of(session);
  if (link) {
    const Lock lock(mutex_);
    std::vector<TransferPtr> hit;
    for (const auto& [request, transfer] : writes_) {
      if (transfer->link == link) hit.push_back(transfer);
    }
    for (const TransferPtr& transfer : hit) moved(transfer, {kNrtFailure, session.why()}, Cause::kPeerLost);
  }
  close_when_quiet(session);
}

void AgentCore::close_when_quiet(Session& session) {
  if (session.state() != Session::State::kLost) return;
  const auto link = link_of(session);
  bool serving = false;
  bool unsure = false;  // the peer may still be reading for a WRITE of ours; the end of its stream will tell
  if (link) {
    const Lock lock(mutex_);
    serving = link->serving != 0;
    unsure = std::any_of(writes_.begin(), writes_.end(), [&](const auto& w) { return w.second->link == link; });
  }
  if (serving) return;
  if (session.peer_closed()) {
    session.close();
  } else if (!unsure) {
    loop_->at(Clock::now() + kLastWords, [weak = session.weak_from_this()] {
      if (const auto self = weak.lock()) self->close();
    });
  }
}

void AgentCore::on_closed(Session& session) {
  session_links_.erase(&session);
  session_peers_.erase(&session);
  sessions_.erase(&session);
  const Lock lock(mutex_);
  --live_sessions_;
  in_flight_changed_.notify_all();
}

void AgentCore::on_tick(Session& session) {
  const PeerPtr peer = session_peers_.at(&session);
  const auto link = link_of(session);
  const Lock lock(mutex_);
  send_notifications(*peer);
  const Time now = Clock::now();
  for (const auto& [request, transfer] : writes_) {
    if (transfer->link == link && now - transfer->queried_at >= parts_.resend_after) send_write_query(*transfer);
  }
  std::erase_if(retired_workers_, [](const auto& workers) { return workers.use_count() == 1 && workers->idle(); });
}

}  // namespace nxl::kv
