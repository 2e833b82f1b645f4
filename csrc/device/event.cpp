// SPDX-License-Identifier: Apache-2.0
// Event: ticket and time.
#include "device/event.h"

#include "core/error.h"
#include "device/context.h"
#include "device/event_clock.h"

namespace nxl::device {

void Event::record(c10::DeviceIndex device, bool timed) {
  check_device(device);
  device_ = device;
  timed_ = timed;
  loader::CoreQueue* queue = queue_if_used(device);
  ticket_ = queue != nullptr ? queue->submitted() : 0;
  if (!timed) return;
  if (queue == nullptr || queue->is_complete(ticket_)) {
    std::promise<Clock::time_point> now;
    now.set_value(Clock::now());
    reached_ = now.get_future().share();
  } else {
    reached_ = EventClock::of(device).watch(*queue, ticket_);
  }
}

bool Event::is_complete() const noexcept {
  loader::CoreQueue* queue = queue_if_used(device_);
  return queue == nullptr || ticket_ == 0 || queue->is_complete(ticket_);
}

void Event::synchronize() const { device::synchronize(device_, ticket_); }

Event::Clock::time_point Event::reached() const {
  NXL_CHECK(timed_, kInvalid, "elapsed_time needs two events made with enable_timing=True");
  NXL_CHECK(is_complete(), kInvalid,
            "elapsed_time needs two events that have been reached; call synchronize() on the later one first");
  // The ticket is complete, so the clock's thread is about to stamp it.
  NXL_CHECK(reached_.wait_for(std::chrono::seconds(10)) == std::future_status::ready, kInternal,
            "the time of a completed event was not taken within 10 s");
  return reached_.get();
}

double Event::milliseconds_until(const Event& end) const {
  NXL_CHECK(device_ == end.device_, kInvalid,
            "elapsed_time needs two events of one device, got neuron:", static_cast<int>(device_),
            " and neuron:", static_cast<int>(end.device_));
  return std::chrono::duration<double, std::milli>(end.reached() - reached()).count();
}

}  // namespace nxl::device
