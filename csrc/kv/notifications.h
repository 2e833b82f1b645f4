// SPDX-License-Identifier: Apache-2.0
// Notifications arrive once and in order: numbered, acknowledged, sent again, and dropped when they come twice.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/api.h"
#include "kv/messages.h"

namespace nxl::kv {

// What one peer has yet to acknowledge. Its owner locks.
class NXL_API Outbox {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Outbox(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  bool push(NotifyKind kind, std::string payload);             // false: it is full
  uint64_t push_always(NotifyKind kind, std::string payload);  // what was promised when there was room; its number
  bool full() const;
  // What is to be sent now, within a window: what was never sent; and once the oldest has waited `patience` for its
  // acknowledgement, everything again.
  std::vector<NotifyMessage> due(Time now, std::chrono::milliseconds patience);
  void acknowledge(uint64_t sequence);
  void new_session() { sent_ = 0; }  // the same incarnation: all is sent again
  size_t restart();                  // a new incarnation: returns how many are lost with the old one
  size_t size() const { return queue_.size(); }

 private:
  uint64_t max_bytes_;
  uint64_t bytes_ = 0;
  uint64_t next_sequence_ = 1;
  std::deque<NotifyMessage> queue_;
  size_t sent_ = 0;  // of the queue's front
  Time sent_at_{};
};

// What one peer has delivered. Its owner locks.
class NXL_API InboxStream {
 public:
  enum class Arrival { kNew, kRepeated, kGap };
  Arrival arrive(const Key& incarnation, uint64_t sequence) const;
  void accept(const Key& incarnation, uint64_t sequence);
  uint64_t last(const Key& incarnation) const { return incarnation == incarnation_ ? last_ : 0; }

 private:
  Key incarnation_{};
  uint64_t last_ = 0;
};

}  // namespace nxl::kv
