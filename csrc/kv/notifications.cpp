// SPDX-License-Identifier: Apache-2.0
// Go-back-N over frames that a connection may lose when it breaks.
#include "kv/notifications.h"

#include <algorithm>

namespace nxl::kv {
namespace {

constexpr size_t kWindow = 1024;    // sent and not acknowledged: what a full receiver makes us send again
constexpr uint64_t kOverhead = 64;  // of one entry, so that empty payloads are bounded, too

}  // namespace

bool Outbox::push(NotifyKind kind, std::string payload) {
  if (bytes_ + payload.size() + kOverhead > max_bytes_) return false;
  push_always(kind, std::move(payload));
  return true;
}

uint64_t Outbox::push_always(NotifyKind kind, std::string payload) {
  bytes_ += payload.size() + kOverhead;
  queue_.push_back({next_sequence_, kind, std::move(payload)});
  return next_sequence_++;
}

bool Outbox::full() const { return bytes_ >= max_bytes_; }

std::vector<NotifyMessage> Outbox::due(Time now, std::chrono::milliseconds patience) {
  if (sent_ > 0 && now - sent_at_ >= patience) sent_ = 0;
  const size_t end = std::min(queue_.size(), kWindow);
  if (sent_ >= end) return {};
  std::vector<NotifyMessage> result(queue_.begin() + static_cast<ptrdiff_t>(sent_),
                                    queue_.begin() + static_cast<ptrdiff_t>(end));
  if (sent_ == 0) sent_at_ = now;
  sent_ = end;
  return result;
}

void Outbox::acknowledge(uint64_t sequence) {
  while (!queue_.empty() && queue_.front().sequence <= sequence) {
    bytes_ -= queue_.front().payload.size() + kOverhead;
    queue_.pop_front();
    if (sent_ > 0) --sent_;
    sent_at_ = std::chrono::steady_clock::now();
  }
}

size_t Outbox::restart() {
  const size_t lost = queue_.size();
  queue_.clear();
  bytes_ = 0;
  sent_ = 0;
  next_sequence_ = 1;
  return lost;
}

InboxStream::Arrival InboxStream::arrive(const Key& incarnation, uint64_t sequence) const {
  const uint64_t before = last(incarnation);
  if (sequence <= before) return Arrival::kRepeated;
  return sequence == before + 1 ? Arrival::kNew : Arrival::kGap;
}

void InboxStream::accept(const Key& incarnation, uint64_t sequence) {
  incarnation_ = incarnation;
  last_ = sequence;
}

}  // namespace nxl::kv
