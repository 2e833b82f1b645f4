// SPDX-License-Identifier: Apache-2.0
// Events: a place in a core's queue, and with timing enabled the moment it was reached.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>

namespace nxl::device {

// What torch.Event holds through the guard. Not thread safe by itself, like every torch.Event.
class Event {
 public:
  using Clock = std::chrono::steady_clock;

  // Marks "everything issued on `device` so far". A later call moves the mark.
  void record(c10::DeviceIndex device, bool timed);
  bool is_complete() const noexcept;
  // Waits; throws nxl::Error for a time-out or an execution error.
  void synchronize() const;
  // Milliseconds from the moment this event was reached to the moment `end` was. Both must be timed, complete, and on
  // the same device, else nxl::Error(kInvalid).
  double milliseconds_until(const Event& end) const;

  c10::DeviceIndex device() const { return device_; }

 private:
  Clock::time_point reached() const;

  c10::DeviceIndex device_ = -1;
  uint64_t ticket_ = 0;
  bool timed_ = false;
  std::shared_future<Clock::time_point> reached_;
};

}  // namespace nxl::device
