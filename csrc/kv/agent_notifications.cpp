// SPDX-License-Identifier: Apache-2.0
// Notifications of an agent: one outbox a peer, one inbox, and the finished leases that travel among them.
#include "core/error.h"
#include "core/log.h"
#include "kv/agent_core.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {

Status AgentCore::queue_notification(PeerEntry& peer, NotifyKind kind, std::string payload) {
  if (!peer.outbox.push(kind, std::move(payload))) {
    return {kNrtResource, detail::concat("notifications to ", peer.name, ": max_notification_bytes (",
                                         config_.max_notification_bytes, ") are unacknowledged; try again later")};
  }
  ++metrics_.notifications_sent;
  send_notifications(peer);
  return Status::ok();
}

void AgentCore::send_notifications(PeerEntry& peer) {
  if (!peer.link || peer.link->down) return;
  for (const NotifyMessage& message : peer.outbox.due(Clock::now(), parts_.resend_after)) {
    peer.link->session->send(FrameType::kNotify, message.encode());
  }
}

void AgentCore::acknowledged(PeerEntry& peer, uint64_t number) {
  peer.outbox.acknowledge(number);
  const Time now = Clock::now();
  for (; !peer.owed.empty() && peer.owed.front().number <= number; peer.owed.pop_front()) {
    const auto& owed = peer.owed.front();
    metrics_.ack_us[static_cast<size_t>(TransferKind::kRead)].add(microseconds(now - owed.since));
    if (const auto transfer = owed.transfer.lock(); transfer && transfer->ended_at == owed.since) {
      transfer->acked_at = now;
    }
  }
}

void AgentCore::forget_notifications(PeerEntry& peer) {
  metrics_.notifications_lost += peer.outbox.restart();
  peer.owed.clear();
}

Status AgentCore::notify(PeerId peer, const std::string& payload) {
  if (payload.size() > kMaxNotification) {
    return {kNrtInvalid, detail::concat("notification of ", payload.size(), " bytes, the limit is ", kMaxNotification)};
  }
  const Lock lock(mutex_);
  if (closed_) return {kNrtClosed, "kv agent " + config_.name + " was closed"};
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return {kNrtInvalidHandle, "peer " + std::to_string(peer) + " is unknown or was replaced"};
  return queue_notification(*it->second, NotifyKind::kMessage, payload);
}

Status AgentCore::finish_lease(PeerId peer, const LeaseTicket& lease) {
  const Lock lock(mutex_);
  if (closed_) return {kNrtClosed, "kv agent " + config_.name + " was closed"};
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return {kNrtInvalidHandle, "peer " + std::to_string(peer) + " is unknown or was replaced"};
  return queue_notification(*it->second, NotifyKind::kLeaseFinished, LeaseFinished{lease.id, lease.key}.encode());
}

std::vector<Notification> AgentCore::poll_notifications(size_t most) {
  const Lock lock(mutex_);
  std::vector<Notification> result;
  while (!inbox_.empty() && result.size() < most) {
    inbox_bytes_ -= inbox_.front().payload.size();
    result.push_back(std::move(inbox_.front()));
    inbox_.pop_front();
  }
  return result;
}

void AgentCore::on_notify(Session& session, const Frame& frame) {
  const NotifyMessage message = NotifyMessage::decode(frame.body);
  const Lock lock(mutex_);
  InboxStream& stream = streams_[{session.name(), session.initiator()}];
  switch (stream.arrive(session.incarnation(), message.sequence)) {
    case InboxStream::Arrival::kGap:
      ++metrics_.notifications_deferred;
      return;  // comes again with the missing one before it
    case InboxStream::Arrival::kRepeated:
      ++metrics_.notifications_repeated;
      break;
    case InboxStream::Arrival::kNew:
      if (message.kind == NotifyKind::kLeaseFinished) {
        const LeaseFinished finished = LeaseFinished::decode(message.payload);
        const auto how = leases_.finish(finished.lease, finished.key, session.name());
        if (how == LeaseTable::Finish::kNotAReader || how == LeaseTable::Finish::kWrongKey) {
          NXL_LOG(kWarning, "kv agent ", config_.name, ": ", session.label(), " finished lease ", finished.lease,
                  how == LeaseTable::Finish::kWrongKey ? " with a wrong key" : ", which does not name it");
        }
      } else {
        if (inbox_bytes_ + message.payload.size() > config_.max_notification_bytes) {
          ++metrics_.notifications_deferred;
          return;  // not acknowledged: it comes again when there may be room
        }
        inbox_bytes_ += message.payload.size();
        inbox_.push_back({session.name(), message.payload});
      }
      stream.accept(session.incarnation(), message.sequence);
      ++metrics_.notifications_received;
      break;
  }
  session.send(FrameType::kNotifyAck, NumberMessage{stream.last(session.incarnation())}.encode());
}

void AgentCore::on_frame(Session& session, const Frame& frame) {
  switch (frame.header.type) {
    case FrameType::kNotify:
      return on_notify(session, frame);
    case FrameType::kNotifyAck: {
      const uint64_t sequence = NumberMessage::decode(frame.body).value;
      const PeerPtr peer = session_peers_.at(&session);
      const Lock lock(mutex_);
      acknowledged(*peer, sequence);
      send_notifications(*peer);
      return;
    }
    case FrameType::kWriteRequest:
      return on_write_request(session, frame);
    case FrameType::kWriteQuery:
      return on_write_query(session, frame);
    case FrameType::kWriteCancel:
      return on_write_cancel(session, frame);
    case FrameType::kWriteStatus:
      return on_write_status(session, frame);
    default:
      throw_error(ErrorKind::kInvalid, std::string(frame_name(frame.header.type)) + " out of turn");
  }
}

}  // namespace nxl::kv
