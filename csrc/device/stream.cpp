// SPDX-License-Identifier: Apache-2.0
// Stream ids and the thread's current streams.
#include "device/stream.h"

#include <array>
#include <atomic>

namespace nxl::device {
namespace {

constexpr c10::StreamId kPriorityMask = 3;
constexpr int kPriorityBits = 2;
constexpr c10::StreamId kPooledStreams = 32;

thread_local std::array<c10::StreamId, kMaxDevices> t_current_stream{};
std::atomic<c10::StreamId> next_own_number{kPooledStreams + 1};
std::atomic<uint32_t> next_pooled{0};

c10::Stream make(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id);
}

c10::StreamId id_of(c10::StreamId number, bool high_priority) {
  return (number << kPriorityBits) | (high_priority ? 1 : 0);
}

}  // namespace

c10::Stream default_stream(c10::DeviceIndex device) noexcept { return make(device, 0); }

c10::Stream current_stream(c10::DeviceIndex device) noexcept { return make(device, t_current_stream[device]); }

c10::Stream exchange_current_stream(const c10::Stream& stream) {
  check_device(stream.device_index());
  const c10::Stream before = current_stream(stream.device_index());
  t_current_stream[stream.device_index()] = stream.id();
  return before;
}

c10::Stream new_stream(c10::DeviceIndex device, int priority) {
  check_device(device);
  return make(device, id_of(next_own_number.fetch_add(1, std::memory_order_relaxed), priority < 0));
}

c10::Stream pooled_stream(c10::DeviceIndex device, bool high_priority) {
  check_device(device);
  const uint32_t turn = next_pooled.fetch_add(1, std::memory_order_relaxed);
  return make(device, id_of(1 + turn % kPooledStreams, high_priority));
}

int stream_priority(c10::StreamId id) noexcept { return (id & kPriorityMask) == 1 ? -1 : 0; }

bool stream_is_idle(const c10::Stream& stream) noexcept { return is_idle(stream.device_index()); }

}  // namespace nxl::device
