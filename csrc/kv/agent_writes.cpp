// SPDX-License-Identifier: Apache-2.0
// WRITE: the target is asked to read, so that exported memory stays read-only. Requests and statuses may be lost with a
// frame or come twice; each request has a number, and the target remembers what it answered.
#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "kv/agent_core.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {
namespace {

constexpr size_t kRememberedResults = 4096;  // of a link; each is a few words
constexpr uint64_t kMaxDeadlineMs = 24 * 3600 * 1000;

}  // namespace

void AgentCore::send_write_request(const TransferPtr& transfer) {
  Transfer& t = *transfer;
  WriteRequestMessage request;
  std::shared_ptr<const RemoteRegionMap> regions;
  {
    const Lock lock(mutex_);
    if (t.machine.state() != TransferState::kPosted && t.machine.state() != TransferState::kActive) return;
    if (t.link->down) return;  // it was or will be failed with the session
    t.machine.begin();
    if (t.begun_at == Time{}) t.begun_at = Clock::now();
    regions = t.link->regions;
    request.transfer = t.request;
    request.notification = t.notification;
    const LeaseTicket life = leases_.life();
    request.life_word = life.word;
    request.life_generation = life.generation;
    request.deadline_ms =
        static_cast<uint64_t>(std::max<int64_t>(1, std::chrono::ceil<Milliseconds>(t.deadline - Clock::now()).count()));
    t.queried_at = Clock::now();
  }
  request.runs = t.runs;
  std::vector<uint32_t> used;
  for (const Run& run : t.runs) {
    if (used.empty() || used.back() != run.target_region) used.push_back(run.target_region);
  }
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (const uint32_t index : used) {
    const auto it = regions->find(index);
    request.target_keys.emplace_back(index, it == regions->end() ? Key{} : it->second->key);
  }
  t.link->session->send(FrameType::kWriteRequest, request.encode());
}

void AgentCore::send_write_query(Transfer& transfer) {
  transfer.queried_at = Clock::now();
  if (transfer.machine.state() == TransferState::kPosted) return;
  ++metrics_.write_queries;
  transfer.link->session->send(FrameType::kWriteQuery, NumberMessage{transfer.request}.encode());
  // A cancel may be what was lost.
  if (transfer.progress.stop) {
    transfer.link->session->send(FrameType::kWriteCancel, NumberMessage{transfer.request}.encode());
  }
}

void AgentCore::on_write_status(Session& session, const Frame& frame) {
  const WriteStatusMessage status = WriteStatusMessage::decode(frame.body);
  TransferPtr again;
  {
    const Lock lock(mutex_);
    const auto it = writes_.find(status.transfer);
    if (it == writes_.end() || it->second->link != link_of(session)) return;  // an answer that came twice
    const TransferPtr transfer = it->second;
    transfer->progress.bytes_done = status.bytes;
    transfer->target_us = static_cast<double>(status.took_us);
    switch (status.state) {
      case WriteState::kActive:
        return;
      case WriteState::kUnknown:
        // The request was lost. A stopped one need not be sent again: it never ran, and it never will.
        if (transfer->progress.stop) {
          moved(transfer, {kNrtFailure, "the target never got the request"}, Cause::kCancelled);
        } else {
          again = transfer;
        }
        break;
      case WriteState::kDone:
        transfer->moved_at = Clock::now();
        moved(transfer, Status::ok(), Cause::kNone);
        break;
      case WriteState::kFailed:
        transfer->moved_at = Clock::now();
        if (status.in_place != 0 && status.in_place <= transfer->bytes) {
          transfer->missing = {{status.in_place, transfer->bytes}};
        }
        moved(transfer, {kNrtFailure, session.name() + ": " + status.message}, status.cause);
        break;
    }
  }
  if (again && session.state() == Session::State::kUp) send_write_request(again);
}

void AgentCore::on_write_request(Session& session, const Frame& frame) {
  WriteRequestMessage request = WriteRequestMessage::decode(frame.body);
  const auto link = link_of(session);
  const Time now = Clock::now();
  auto transfer = std::make_shared<Transfer>();
  {
    const Lock lock(mutex_);
    if (link->served.contains(request.transfer)) return;
    if (const auto it = link->served_results.find(request.transfer); it != link->served_results.end()) {
      session.send(FrameType::kWriteStatus, it->second.encode());
      return;
    }
  }
  std::string refusal;
  try {
    transfer->kind = TransferKind::kServe;
    transfer->link = link;
    transfer->request = request.transfer;
    transfer->notification = std::move(request.notification);
    std::vector<uint32_t> remote_used;
    const auto table = regions_.snapshot();
    transfer->bytes = check_runs(request.runs, *table, *session.regions(), true, session.name(),
                                 transfer->local_regions, remote_used);
    for (const uint32_t index : transfer->local_regions) {
      const auto key = std::find_if(request.target_keys.begin(), request.target_keys.end(),
                                    [index](const auto& entry) { return entry.first == index; });
      const Region& region = *table->at(index);
      NXL_CHECK(key != request.target_keys.end() && key->second == region.key, kInvalid, "key of region ", index,
                " does not fit");
      NXL_CHECK(region.description.writable, kInvalid, "region ", index, " (", region.description.name,
                ") may not be written");
    }
    transfer->runs = std::move(request.runs);
    choose_channel(*transfer, remote_used, *session.regions());
    // Where no processor of the initiator's takes part, its memory can still be read when it has closed.
    if (request.life_generation != 0 && transfer->channel->capabilities().one_sided) {
      transfer->lease = LeaseTicket{0, {}, request.life_word, request.life_generation};
    }
    transfer->posted_at = now;
    transfer->deadline = now + Milliseconds(std::min(request.deadline_ms, kMaxDeadlineMs));
    NXL_CHECK(regions_.pin(transfer->local_regions), kInvalid, "a region was deregistered");
    const Lock lock(mutex_);
    const bool room = !closed_ && !draining_ && transfer->bytes <= config_.max_bytes_in_flight - bytes_in_flight_ &&
                      inbox_bytes_ + transfer->notification.size() <= config_.max_notification_bytes &&
                      link->served.size() < config_.max_transfers;
    if (!room) {
      regions_.unpin(transfer->local_regions);
      throw_error(ErrorKind::kUnavailable,
                  "the target is at a limit (bytes in flight, notifications) or closes; "
                  "post again later");
    }
    transfer->machine.post();
    ++in_flight_;
    bytes_in_flight_ += transfer->bytes;
    ++link->serving;
    link->served.emplace(request.transfer, transfer);
    // The deadline is also this side's: a stopped initiator must not hold the target's blocks.
    transfer->timer = loop_->at(transfer->deadline, [this, weak = std::weak_ptr(transfer)] {
      const auto self = weak.lock();
      if (!self) return;
      const Lock inner(mutex_);
      stop(self, Cause::kDeadline, "the deadline passed");
    });
    workers_for(*transfer).submit([this, transfer] { run(transfer); });
  } catch (const Error& error) {
    refusal = error.what();
  }
  if (refusal.empty()) return;
  const Lock lock(mutex_);
  remember_result(*link, {request.transfer, WriteState::kFailed, Cause::kRefused, refusal, 0});
}

void AgentCore::served(const TransferPtr& transfer) {
  Transfer& t = *transfer;
  Link& link = *t.link;
  const bool done = t.machine.state() == TransferState::kDone;
  if (done && !t.notification.empty()) {
    inbox_bytes_ += t.notification.size();
    inbox_.push_back({link.peer_name, t.notification});
    ++metrics_.notifications_received;
  }
  link.served.erase(t.request);
  regions_.unpin(t.local_regions);
  // What is missing is told by the first gap only: several copy threads may leave more than one.
  uint64_t in_place = done ? t.bytes : 0;
  if (t.missing) {
    in_place = std::ranges::min(*t.missing, {}, &ByteRange::begin).begin;
  }
  // Sent now that not a byte moves any more: the initiator may take it as the drain certificate.
  remember_result(
      link, {t.request, done ? WriteState::kDone : WriteState::kFailed, t.machine.cause(), t.machine.message(),
             t.progress.bytes_done.load(), in_place,
             static_cast<uint64_t>(std::chrono::ceil<std::chrono::microseconds>(Clock::now() - t.posted_at).count())});
  if (--link.serving == 0 && link.down) {
    loop_->call([this, session = link.session] { close_when_quiet(*session); });
  }
}

void AgentCore::remember_result(Link& link, WriteStatusMessage status) {
  link.session->send(FrameType::kWriteStatus, status.encode());
  link.served_order.push_back(status.transfer);
  link.served_results[status.transfer] = std::move(status);
  while (link.served_order.size() > kRememberedResults) {
    link.served_results.erase(link.served_order.front());
    link.served_order.pop_front();
  }
}

void AgentCore::on_write_query(Session& session, const Frame& frame) {
  const uint64_t request = NumberMessage::decode(frame.body).value;
  const auto link = link_of(session);
  const Lock lock(mutex_);
  WriteStatusMessage status{request, WriteState::kUnknown, Cause::kNone, "", 0};
  if (const auto it = link->served.find(request); it != link->served.end()) {
    status.state = WriteState::kActive;
    status.bytes = it->second->progress.bytes_done.load();
  } else if (const auto result = link->served_results.find(request); result != link->served_results.end()) {
    status = result->second;
  }
  session.send(FrameType::kWriteStatus, status.encode());
}

void AgentCore::on_write_cancel(Session& session, const Frame& frame) {
  const uint64_t request = NumberMessage::decode(frame.body).value;
  const auto link = link_of(session);
  const Lock lock(mutex_);
  if (const auto it = link->served.find(request); it != link->served.end()) {
    const TransferPtr transfer = it->second;
    stop(transfer, Cause::kCancelled, "cancelled by the initiator");
  } else if (!link->served_results.contains(request)) {
    // The request itself was lost, or comes later: it must not run then.
    remember_result(*link, {request, WriteState::kFailed, Cause::kCancelled, "cancelled before it came", 0});
  }
}

}  // namespace nxl::kv
