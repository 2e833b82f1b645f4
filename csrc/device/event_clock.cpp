// SPDX-License-Identifier: Apache-2.0
// EventClock: waits for tickets in order and stamps them.
#include "device/event_clock.h"

#include <array>
#include <memory>

#include "device/context.h"

namespace nxl::device {

EventClock& EventClock::of(c10::DeviceIndex device) {
  // Destroyed at exit before the queues, which are older: the threads must be gone before them.
  static std::mutex mutex;
  static std::array<std::unique_ptr<EventClock>, kMaxDevices> clocks;
  const std::lock_guard lock(mutex);
  auto& clock = clocks[device];
  if (clock == nullptr) clock = std::make_unique<EventClock>();
  return *clock;
}

EventClock::~EventClock() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  if (in_bad_fork()) {
    thread_.detach();  // the thread exists in the parent only
  } else {
    thread_.join();
  }
}

std::shared_future<EventClock::Clock::time_point> EventClock::watch(loader::CoreQueue& queue, uint64_t ticket) {
  Watched watched{&queue, ticket, {}};
  std::shared_future<Clock::time_point> reached = watched.reached.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    watched_.push_back(std::move(watched));
  }
  changed_.notify_one();
  return reached;
}

void EventClock::run() {
  constexpr std::chrono::milliseconds kSlice{50};  // how late a stop at exit may be noticed
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !watched_.empty(); });
    if (stopping_) return;
    Watched& first = watched_.front();  // only this thread pops; push_back keeps references of a deque valid
    lock.unlock();
    const bool done = first.queue->is_complete(first.ticket) || first.queue->wait(first.ticket, kSlice).is_ok();
    if (done) first.reached.set_value(Clock::now());
    lock.lock();
    if (done) watched_.pop_front();
  }
}

}  // namespace nxl::device
