// SPDX-License-Identifier: Apache-2.0
// What callers do with a posted transfer: look at it, wait for it, cancel it, let it go.
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "kv/agent_core.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {
namespace {

constexpr std::chrono::nanoseconds kSlowestCopy{2};  // per byte: what is sure to be done in time when a caller waits

}  // namespace

TransferStatus AgentCore::check(TransferId id) const {
  const Lock lock(mutex_);
  const Transfer& t = *find_transfer(id);
  const TransferMachine& m = t.machine;
  TransferStatus status{m.state(), m.cause(), m.message(), m.quiesced(), t.progress.bytes_done.load(), {}};
  if (m.terminal() && m.state() != TransferState::kDone && t.tokens) {
    if (m.quiesced() && t.missing) {
      status.failed_tokens = tokens_of(t.shares, *t.missing);
    } else {
      status.failed_tokens.push_back(*t.tokens);
    }
  }
  return status;
}

TransferState AgentCore::state(TransferId id) const {
  const Lock lock(mutex_);
  return find_transfer(id)->machine.state();
}

TransferStatus AgentCore::wait(TransferId id, Milliseconds timeout) {
  {
    Lock lock(mutex_);
    const TransferPtr transfer = find_transfer(id);
    const Time until = Clock::now() + timeout;
    // Nobody has begun it, and this thread would only sleep: it saves the way to a copy thread and back.
    if (transfer->machine.state() == TransferState::kPosted && transfer->channel != nullptr &&
        transfer->channel->capabilities().one_sided && static_cast<int64_t>(transfer->bytes) * kSlowestCopy < timeout) {
      lock.unlock();
      run(transfer);
      lock.lock();
    }
    transfer->changed.wait_until(lock, until, [&] {
      return transfer->machine.terminal() || transfer->machine.state() == TransferState::kPrepared;
    });
  }
  return check(id);
}

int AgentCore::completion_fd(TransferId id) {
  const Lock lock(mutex_);
  Transfer& t = *find_transfer(id);
  if (!t.completion) {
    t.completion.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    NXL_CHECK(t.completion, kUnavailable, "eventfd: ", std::strerror(errno));
    if (t.machine.terminal()) signal(t);
  }
  return t.completion.get();
}

void AgentCore::cancel(TransferId id) {
  const Lock lock(mutex_);
  stop(find_transfer(id), Cause::kCancelled, "cancelled");
}

Status AgentCore::release(TransferId id) {
  TransferPtr transfer;
  {
    const Lock lock(mutex_);
    const auto it = transfers_.find(id);
    if (it == transfers_.end()) {
      return {kNrtInvalidHandle, detail::concat("transfer ", id, " is unknown or was released")};
    }
    const TransferMachine& m = it->second->machine;
    if (m.in_flight() || (!m.terminal() && m.state() != TransferState::kPrepared)) {
      return {kNrtResource, detail::concat("transfer ", id, " is ", state_name(m.state()),
                                           ": bytes may still move; cancel it and wait until it is quiesced")};
    }
    transfer = std::move(it->second);
    transfers_.erase(it);
    // Whoever copied for it has come past the mutex since; a WRITE's request may still be being encoded.
    if (transfer->kind == TransferKind::kRead) give_back_runs(std::move(transfer->runs));
  }
  regions_.unpin(transfer->local_regions);
  return Status::ok();
}

TransferTimes AgentCore::times(TransferId id) const {
  const Lock lock(mutex_);
  const Transfer& t = *find_transfer(id);
  TransferTimes times;
  times.plan = t.plan_us;
  times.post = t.post_us;
  times.validate = t.validate_us;
  if (t.begun_at != Time{}) times.queue = microseconds(t.begun_at - t.posted_at);
  if (t.begun_at != Time{} && t.moved_at != Time{})
    times.wire = microseconds(t.moved_at - t.begun_at) - t.round_trip_us();
  times.flush = t.flush_us;
  times.ack = t.kind == TransferKind::kWrite ? t.round_trip_us()
              : t.acked_at == Time{}         ? 0
                                             : microseconds(t.acked_at - t.ended_at);
  if (t.ended_at != Time{}) times.total = microseconds(t.ended_at - t.posted_at);
  times.bytes = t.bytes;
  times.runs = t.runs.size();
  times.provider = t.channel ? t.channel->provider() : "peer";
  return times;
}

Status AgentCore::drain(Milliseconds timeout) {
  Lock lock(mutex_);
  draining_ = true;
  if (in_flight_changed_.wait_for(lock, timeout, [this] { return in_flight_ == 0 || closed_; })) return Status::ok();
  return {kNrtTimeout, detail::concat(in_flight_, " transfers are still in flight after ", timeout.count(), " ms")};
}

void AgentCore::resume() {
  const Lock lock(mutex_);
  check_open();
  draining_ = false;
}

}  // namespace nxl::kv
