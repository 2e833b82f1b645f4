// SPDX-License-Identifier: Apache-2.0
// Takes the time at which a ticket of a core's queue completes: one thread per core, made by the first timed event.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "loader/core_queue.h"

namespace nxl::device {

class EventClock {
 public:
  using Clock = std::chrono::steady_clock;

  static EventClock& of(c10::DeviceIndex device);
  ~EventClock();

  // The moment `ticket` completes. Tickets come in the order of the queue.
  std::shared_future<Clock::time_point> watch(loader::CoreQueue& queue, uint64_t ticket);

 private:
  struct Watched {
    loader::CoreQueue* queue;
    uint64_t ticket;
    std::promise<Clock::time_point> reached;
  };
  void run();

  std::mutex mutex_;  // guards everything below but thread_
  std::condition_variable changed_;
  std::deque<Watched> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace nxl::device
