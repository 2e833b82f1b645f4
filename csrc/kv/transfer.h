// SPDX-License-Identifier: Apache-2.0
// The life of one transfer: which state may follow which, and that it ends once, for one cause.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/api.h"
#include "core/unique_handle.h"
#include "kv/agent.h"
#include "kv/event_loop.h"
#include "kv/plan.h"
#include "kv/provider.h"

namespace nxl::kv {

// A pure state machine; its owner locks. Terminal and quiesced are two things: a deadline makes a transfer kFailed at
// once, but until whatever moves bytes has said that it stopped, memory must not be reused.
class NXL_API TransferMachine {
 public:
  enum class Effect {
    kNone,      // nothing changed
    kStopping,  // tell the one that moves bytes to stop; the end comes with moved()
    kEnded,     // terminal now, and quiesced() says whether bytes may still move
  };

  bool post();   // false unless prepared, or ended and quiesced
  bool begin();  // kPosted -> kActive: from here on bytes may move. False: it ended while it waited
  // Cancel, deadline, peer lost, closed. The first one gives the cause.
  Effect stop(Cause cause, const std::string& message);
  // Whatever moved bytes has stopped, with this result. kEnded unless it had ended before.
  Effect moved(const Status& status, Cause cause);

  TransferState state() const { return state_; }
  Cause cause() const { return cause_; }
  const std::string& message() const { return message_; }
  bool quiesced() const { return quiesced_; }
  bool terminal() const { return is_terminal(state_); }
  bool in_flight() const { return state_ == TransferState::kPosted || !quiesced_; }

 private:
  void end(TransferState state, Cause cause, const std::string& message);

  TransferState state_ = TransferState::kPrepared;
  Cause cause_ = Cause::kNone;
  std::string message_;
  bool quiesced_ = true;
};

enum class TransferKind : uint8_t { kRead, kWrite, kServe };  // kServe: a peer's WRITE that we carry out by reading
NXL_API const char* kind_name(TransferKind kind);

struct Link;

inline double microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// [begin, end) of the bytes that the runs of a transfer move, taken in order.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The tokens of `shares` that have a byte in one of `missing`, neighbours joined.
NXL_API std::vector<TokenRange> tokens_of(std::span<const TokenShare> shares, std::span<const ByteRange> missing);

// Fixed from prepare to release but for what the agent's mutex guards.
struct Transfer {
  using Time = std::chrono::steady_clock::time_point;

  TransferId id = 0;
  TransferKind kind = TransferKind::kRead;
  std::shared_ptr<Link> link;
  std::shared_ptr<Channel> channel;  // null: a WRITE, which the target carries out
  size_t channel_index = 0;
  std::vector<Run> runs;
  uint64_t bytes = 0;
  std::vector<uint32_t> local_regions;  // pinned until release
  std::optional<LeaseTicket> lease;
  KvReadOptions options;
  std::optional<TokenRange> tokens;  // of a planned transfer
  std::vector<TokenShare> shares;    // of those
  std::vector<Run> tail;             // local slots to clear
  double plan_us = 0;
  Progress progress;

  // Guarded by the agent's mutex.
  TransferMachine machine;
  std::condition_variable changed;
  std::string notification;
  Time posted_at{}, begun_at{}, moved_at{}, ended_at{};
  Time deadline{};
  double post_us = 0, validate_us = 0, flush_us = 0, target_us = 0;
  Time acked_at{};
  std::optional<std::vector<ByteRange>> missing;  // of the runs' bytes, when a copy that broke off said so
  EventLoop::TimerId timer = 0;
  UniqueFd completion;
  double round_trip_us() const;  // of a WRITE that is done: its time on the wire without the target's work
  uint64_t request = 0;          // kServe: the initiator's number. kWrite: ours, new for each post
  Time queried_at{};             // kWrite: when the target was last asked
};

}  // namespace nxl::kv
