// SPDX-License-Identifier: Apache-2.0
// Transitions of a transfer, and the names of states and causes.
#include "kv/transfer.h"

#include <algorithm>
#include <iterator>

namespace nxl::kv {

const char* cause_name(Cause cause) {
  static constexpr const char* kNames[kCauseCount] = {"none",    "cancelled", "deadline",  "peer_lost", "lease_expired",
                                                      "refused", "provider",  "integrity", "closed"};
  return kNames[static_cast<size_t>(cause)];
}

const char* state_name(PeerState state) {
  static constexpr const char* kNames[] = {"handshaking", "up", "suspect", "down"};
  return kNames[static_cast<size_t>(state)];
}

const char* state_name(TransferState state) {
  static constexpr const char* kNames[] = {"prepared", "posted", "active", "cancelling", "done", "failed", "cancelled"};
  return kNames[static_cast<size_t>(state)];
}

const char* lease_end_name(LeaseEnd end) {
  static constexpr const char* kNames[] = {"read", "expired", "released"};
  return kNames[static_cast<size_t>(end)];
}

const char* kind_name(TransferKind kind) {
  static constexpr const char* kNames[] = {"read", "write", "serve"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<TokenRange> tokens_of(std::span<const TokenShare> shares, std::span<const ByteRange> missing) {
  std::vector<TokenRange> result;
  uint64_t begin = 0;
  for (const TokenShare& share : shares) {
    const bool lacks = std::ranges::any_of(
        missing, [&](const ByteRange& range) { return range.begin < share.end_byte && range.end > begin; });
    begin = share.end_byte;
    if (!lacks) continue;
    if (!result.empty() && result.back().end == share.tokens.begin) {
      result.back().end = share.tokens.end;
    } else {
      result.push_back(share.tokens);
    }
  }
  return result;
}

double Transfer::round_trip_us() const {
  if (kind != TransferKind::kWrite || target_us == 0 || begun_at == Time{} || moved_at == Time{}) return 0;
  return std::max(0.0, microseconds(moved_at - begun_at) - target_us);
}

bool TransferMachine::post() {
  if (state_ != TransferState::kPrepared && !(terminal() && quiesced_)) return false;
  state_ = TransferState::kPosted;
  cause_ = Cause::kNone;
  message_.clear();
  return true;
}

bool TransferMachine::begin() {
  if (state_ != TransferState::kPosted) return false;
  state_ = TransferState::kActive;
  quiesced_ = false;
  return true;
}

void TransferMachine::end(TransferState state, Cause cause, const std::string& message) {
  state_ = state;
  cause_ = cause;
  message_ = message;
}

TransferMachine::Effect TransferMachine::stop(Cause cause, const std::string& message) {
  const bool cancel = cause == Cause::kCancelled;
  switch (state_) {
    case TransferState::kPrepared:
      if (!cancel) return Effect::kNone;
      [[fallthrough]];
    case TransferState::kPosted:
      end(cancel ? TransferState::kCancelled : TransferState::kFailed, cause, message);
      return Effect::kEnded;
    case TransferState::kActive:
      if (cancel) {
        end(TransferState::kCancelling, cause, message);
        return Effect::kStopping;
      }
      end(TransferState::kFailed, cause, message);
      return Effect::kEnded;
    case TransferState::kCancelling:
      if (cancel) return Effect::kNone;
      // It was cancelled first; the drain certificate is what did not come in time.
      state_ = TransferState::kCancelled;
      return Effect::kEnded;
    default:
      return Effect::kNone;
  }
}

TransferMachine::Effect TransferMachine::moved(const Status& status, Cause cause) {
  quiesced_ = true;
  switch (state_) {
    case TransferState::kActive:
      if (status.is_ok()) {
        end(TransferState::kDone, Cause::kNone, "");
      } else {
        end(TransferState::kFailed, cause == Cause::kNone ? Cause::kProvider : cause, status.message);
      }
      return Effect::kEnded;
    case TransferState::kCancelling:
      state_ = TransferState::kCancelled;
      return Effect::kEnded;
    default:
      return Effect::kNone;
  }
}

}  // namespace nxl::kv
