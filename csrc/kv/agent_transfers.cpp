// SPDX-License-Identifier: Apache-2.0
// Running transfers: post, copy, the ways to end, and what an end sets off.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/log.h"
#include "kv/agent_core.h"
#include "kv/nrt_codes.h"
#include "kv/run_parts.h"

namespace nxl::kv {
namespace {

constexpr std::chrono::milliseconds kGrace{20};  // between the failure of a copy and its verdict
constexpr uint64_t kWorthSplitting = 1 << 20;    // bytes from which several copy threads take part

uint64_t bytes_before(std::span<const Run> runs, size_t index) {
  uint64_t bytes = 0;
  for (const Run& run : runs.first(std::min(index, runs.size()))) bytes += run.total_bytes();
  return bytes;
}

// All of `runs` in as many calls as the channel needs; first_failed_run counts in `runs`.
CopyResult read_all(Transfer& t, std::span<const Run> runs) {
  const uint64_t most = t.channel->capabilities().max_runs;
  CopyResult result;
  for (size_t at = 0; at < runs.size() && result.status.is_ok();) {
    const size_t count = std::min<uint64_t>(most, runs.size() - at);
    const double flushed = result.flush_us;
    result = t.channel->read(runs.subspan(at, count), t.progress, t.deadline);
    result.flush_us += flushed;
    result.first_failed_run += at;
    at += count;
  }
  return result;
}

void clear_eventfd(int fd) {
  uint64_t value = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd, &value, sizeof value);
}

}  // namespace

AgentCore::TransferPtr AgentCore::find_transfer(TransferId transfer) const {
  const auto it = transfers_.find(transfer);
  NXL_CHECK(it != transfers_.end(), kInvalid, "transfer ", transfer, " is unknown or was released");
  return it->second;
}

Status AgentCore::post(TransferId id, Milliseconds deadline, const std::string& notification) {
  const Time began = Clock::now();
  if (notification.size() > kMaxNotification) {
    return {kNrtInvalid,
            detail::concat("notification of ", notification.size(), " bytes, the limit is ", kMaxNotification)};
  }
  Lock lock(mutex_);
  if (closed_) return {kNrtClosed, "kv agent " + config_.name + " was closed"};
  if (draining_) return {kNrtClosed, "kv agent " + config_.name + " is draining"};
  const TransferPtr transfer = find_transfer(id);
  Transfer& t = *transfer;
  if (t.bytes > config_.max_bytes_in_flight - bytes_in_flight_) {
    ++metrics_.refused_posts;
    return {kNrtResource, detail::concat(bytes_in_flight_, " bytes are in flight, max_bytes_in_flight is ",
                                         config_.max_bytes_in_flight, "; post again later")};
  }
  const auto peer = peers_.find(t.link->peer);
  if (peer != peers_.end() && peer->second->outbox.full()) {
    ++metrics_.refused_posts;
    return {kNrtResource, detail::concat("notifications to ", t.link->peer_name, ": max_notification_bytes (",
                                         config_.max_notification_bytes, ") are unacknowledged; post again later")};
  }
  if (!t.machine.post()) {
    return {kNrtInvalid, detail::concat("transfer ", id, " is ", state_name(t.machine.state()),
                                        t.machine.terminal() ? " and not quiesced" : "", "; it was posted already")};
  }
  ++in_flight_;
  ++t.link->in_flight;
  bytes_in_flight_ += t.bytes;
  t.notification = notification;
  t.progress.stop = false;
  t.progress.bytes_done = 0;
  t.posted_at = began;
  t.begun_at = t.moved_at = t.ended_at = {};
  t.acked_at = {};
  t.validate_us = t.flush_us = t.target_us = 0;
  t.missing.reset();
  t.deadline = began + (deadline.count() > 0 ? deadline : config_.default_deadline);
  if (t.completion) clear_eventfd(t.completion.get());
  if (t.link->down) {
    stop(transfer, Cause::kPeerLost, t.link->peer_name + ": the session in which it was prepared is over");
    return Status::ok();
  }
  const bool here = t.channel != nullptr && t.bytes <= config_.inline_bytes && t.channel->capabilities().one_sided;
  if (here) {
    ++metrics_.completed_in_post;
    lock.unlock();
    run(transfer);
    lock.lock();
  } else {
    watch(t.link);
    t.timer = loop_->at(t.deadline, [this, id] { expire(id); });
    if (t.channel == nullptr) {
      t.request = next_request_++;
      t.queried_at = began;
      writes_.emplace(t.request, transfer);
      loop_->call([this, transfer] { send_write_request(transfer); });
    } else {
      workers_for(t).submit([this, transfer] { run(transfer); });
    }
  }
  t.post_us = microseconds(Clock::now() - began);
  return Status::ok();
}

CopyWorkers& AgentCore::workers_for(Transfer& transfer) {
  Link& link = *transfer.link;
  if (transfer.channel->capabilities().one_sided || link.down) return *workers_;
  if (!link.workers) link.workers = std::make_shared<CopyWorkers>("kv-wire-", config_.copy_threads);
  return *link.workers;
}

// One transfer in shares for several threads; the last one to finish reports.
struct AgentCore::Parts {
  TransferPtr transfer;
  std::vector<std::vector<Run>> runs;
  std::atomic<size_t> left;
  std::mutex mutex;
  CopyResult first_failure;
  std::vector<uint64_t> first_byte;  // of each share, in the bytes of the whole
  std::vector<ByteRange> missing;
  double flush_us = 0;
};

Status AgentCore::check_lease(Transfer& t, Cause* cause) {
  if (!t.lease) return Status::ok();
  const Time began = Clock::now();
  uint64_t value = 0;
  const Status status = t.channel->read_word(t.lease->word, &value, t.deadline);
  t.validate_us += microseconds(Clock::now() - began);
  if (!status.is_ok()) {
    *cause = Cause::kProvider;
    return status;
  }
  if (value == t.lease->generation) return Status::ok();
  if (t.kind == TransferKind::kServe) {
    *cause = Cause::kPeerLost;
    return {kNrtClosed, t.link->peer_name + " has closed: what was copied may be other bytes by now"};
  }
  *cause = Cause::kLeaseExpired;
  return {kNrtInvalidHandle, detail::concat("lease ", t.lease->id, " of ", t.link->peer_name,
                                            " has ended: the blocks may hold other tokens by now")};
}

void AgentCore::run(const TransferPtr& transfer) {
  Transfer& t = *transfer;
  CopyWorkers* workers = nullptr;
  {
    const Lock lock(mutex_);
    if (!t.machine.begin()) return;
    t.begun_at = Clock::now();
    t.validate_us = 0;
    const bool large = t.bytes >= kWorthSplitting && t.bytes > config_.inline_bytes;
    if (config_.copy_threads > 1 && large) workers = &workers_for(t);
  }
  Cause cause = Cause::kNone;
  Status status = t.kind == TransferKind::kServe ? Status::ok() : check_lease(t, &cause);
  if (!status.is_ok()) return copied(transfer, {std::move(status), cause}, {});
  if (workers == nullptr) {
    CopyResult result = read_all(t, t.runs);
    std::vector<ByteRange> missing;
    if (!result.status.is_ok()) missing.push_back({bytes_before(t.runs, result.first_failed_run), t.bytes});
    return copied(transfer, std::move(result), std::move(missing));
  }
  auto parts = std::make_shared<Parts>();
  parts->transfer = transfer;
  parts->runs = split_runs(t.runs, t.bytes, config_.copy_threads);
  parts->left = parts->runs.size();
  uint64_t begin = 0;
  for (const auto& part : parts->runs) {
    parts->first_byte.push_back(begin);
    begin += bytes_before(part, part.size());
  }
  for (size_t i = 1; i < parts->runs.size(); ++i) workers->submit([this, parts, i] { run_part(parts, i); });
  run_part(parts, 0);
}

void AgentCore::run_part(const std::shared_ptr<Parts>& parts, size_t index) {
  Transfer& t = *parts->transfer;
  const std::span<const Run> runs = parts->runs[index];
  CopyResult result = read_all(t, runs);
  {
    const std::lock_guard lock(parts->mutex);
    parts->flush_us = std::max(parts->flush_us, result.flush_us);
    if (!result.status.is_ok()) {
      const uint64_t begin = parts->first_byte[index];
      parts->missing.push_back(
          {begin + bytes_before(runs, result.first_failed_run), begin + bytes_before(runs, runs.size())});
      if (parts->first_failure.status.is_ok()) parts->first_failure = std::move(result);
      t.progress.stop = true;
    }
  }
  if (parts->left.fetch_sub(1) != 1) return;
  parts->first_failure.flush_us = parts->flush_us;
  copied(parts->transfer, std::move(parts->first_failure), std::move(parts->missing));
}

void AgentCore::copied(const TransferPtr& transfer, CopyResult result, std::vector<ByteRange> missing) {
  Transfer& t = *transfer;
  Status& status = result.status;
  Cause& cause = result.cause;
  const Time now = Clock::now();
  if (status.is_ok() && !t.tail.empty()) {
    const auto regions = regions_.snapshot();
    for (const Run& run : t.tail) {
      auto* base = static_cast<std::byte*>(regions->at(run.target_region)->description.address) + run.target_offset;
      for (uint32_t i = 0; i < run.count; ++i) std::memset(base + i * run.target_stride, 0, run.bytes);
    }
  }
  if (const uint64_t done = t.progress.bytes_done; status.is_ok() && done != t.bytes) {
    status = {kNrtFailure, detail::concat(done, " of ", t.bytes, " bytes arrived")};
    cause = Cause::kIntegrity;
  }
  // The second look, after the last byte: what was copied is the leased tokens only if the word is still the same.
  bool trusted = !missing.empty() && cause != Cause::kIntegrity;
  if (status.is_ok()) {
    status = check_lease(t, &cause);
  } else if (trusted && t.lease) {
    // So is the part that a broken copy left. Where the peer would have to answer, nobody waits for that.
    Cause ignored = Cause::kNone;
    trusted = t.channel->capabilities().one_sided && check_lease(t, &ignored).is_ok();
  }
  const Lock lock(mutex_);
  t.moved_at = now;
  t.flush_us = result.flush_us;
  if (trusted) t.missing = std::move(missing);
  const bool unexplained = !status.is_ok() && (cause == Cause::kNone || cause == Cause::kProvider);
  if (unexplained && !t.link->down && t.kind == TransferKind::kRead && !closed_) {
    // A data connection often breaks a moment before the control connection shows that the peer has died: the cause is
    // given when that had its time.
    loop_->at(now + kGrace, [this, transfer, status, cause] {
      const Lock later(mutex_);
      moved(transfer, status, transfer->link->down ? Cause::kPeerLost : cause);
    });
    return;
  }
  if (unexplained && t.link->down) cause = Cause::kPeerLost;
  moved(transfer, status, cause);
}

void AgentCore::moved(const TransferPtr& transfer, const Status& status, Cause cause) {
  const bool was = transfer->machine.in_flight();
  apply(transfer, transfer->machine.moved(status, cause), was);
}

void AgentCore::stop(const TransferPtr& transfer, Cause cause, const std::string& message) {
  const bool was = transfer->machine.in_flight();
  const auto effect = transfer->machine.stop(cause, message);
  if (effect == TransferMachine::Effect::kNone) return;
  transfer->progress.stop = true;
  const bool asks = transfer->kind == TransferKind::kWrite && !transfer->machine.quiesced() && !transfer->link->down;
  if (asks) transfer->link->session->send(FrameType::kWriteCancel, NumberMessage{transfer->request}.encode());
  apply(transfer, effect, was);
}

void AgentCore::apply(const TransferPtr& transfer, TransferMachine::Effect effect, bool was_in_flight) {
  Transfer& t = *transfer;
  if (effect == TransferMachine::Effect::kEnded) ended(transfer);
  if (was_in_flight && !t.machine.in_flight()) {
    --in_flight_;
    if (t.kind != TransferKind::kServe) --t.link->in_flight;
    bytes_in_flight_ -= t.bytes;
    if (t.kind == TransferKind::kWrite) writes_.erase(t.request);
    in_flight_changed_.notify_all();
    if (effect != TransferMachine::Effect::kEnded) signal(t);
    if (t.kind == TransferKind::kServe) served(transfer);
  }
}

void AgentCore::ended(const TransferPtr& transfer) {
  Transfer& t = *transfer;
  t.ended_at = Clock::now();
  if (t.timer != 0) loop_->cancel(std::exchange(t.timer, 0));
  const auto kind = static_cast<size_t>(t.kind);
  TransferCounters& counters = *t.link->counters[t.channel_index][kind];
  ++counters.ended[static_cast<size_t>(t.machine.cause())];
  metrics_.total_us[kind].add(microseconds(t.ended_at - t.posted_at));
  if (t.machine.state() == TransferState::kDone) {
    counters.bytes += t.bytes;
    if (t.begun_at != Time{} && t.moved_at != Time{}) {
      metrics_.queue_us[kind].add(microseconds(t.begun_at - t.posted_at));
      metrics_.wire_us[kind].add(microseconds(t.moved_at - t.begun_at) - t.round_trip_us());
      metrics_.flush_us[kind].add(t.flush_us);
      if (t.kind == TransferKind::kWrite) metrics_.ack_us[kind].add(t.round_trip_us());
    }
    const auto peer = peers_.find(t.link->peer);
    if (t.kind == TransferKind::kRead && peer != peers_.end()) {
      // Data first: what is queued here leaves after the last byte has arrived. A full queue holds the next post back,
      // it does not lose what a finished transfer owes.
      uint64_t owed = 0;
      const auto owe = [&](NotifyKind what, std::string payload) {
        owed = peer->second->outbox.push_always(what, std::move(payload));
        ++metrics_.notifications_sent;
      };
      if (!t.notification.empty()) owe(NotifyKind::kMessage, t.notification);
      if (t.lease && t.options.finish_lease) {
        owe(NotifyKind::kLeaseFinished, LeaseFinished{t.lease->id, t.lease->key}.encode());
      }
      if (owed != 0) peer->second->owed.push_back({owed, transfer, t.ended_at});
      send_notifications(*peer->second);
    }
  } else if (t.machine.cause() != Cause::kCancelled && log_enabled(LogLevel::kInfo)) {
    NXL_LOG(kInfo, "kv agent ", config_.name, ": ", kind_name(t.kind), " transfer ", t.id, " of ",
            t.link->session->label(), ": ", state_name(t.machine.state()), ", ", cause_name(t.machine.cause()), ": ",
            t.machine.message());
  }
  signal(t);
}

void AgentCore::signal(Transfer& transfer) {
  transfer.changed.notify_all();
  if (!transfer.completion) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(transfer.completion.get(), &one, sizeof one);
}

void AgentCore::expire(TransferId id) {
  const Lock lock(mutex_);
  const auto it = transfers_.find(id);
  if (it == transfers_.end() || Clock::now() < it->second->deadline) return;  // released, or posted anew
  stop(it->second, Cause::kDeadline, "the deadline passed");
}

}  // namespace nxl::kv
