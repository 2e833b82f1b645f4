// SPDX-License-Identifier: Apache-2.0
// The control thread of an agent: sockets by epoll, timers, and calls handed over by other threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/api.h"
#include "kv/fork_guard.h"

namespace nxl::kv {

class NXL_API EventLoop {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Call = std::function<void()>;
  using OnEvents = std::function<void(uint32_t events)>;
  using TimerId = uint64_t;

  // Throws Error(kUnavailable) when the kernel has no descriptors left. A call that throws is logged, not propagated.
  explicit EventLoop(const std::string& name);
  ~EventLoop();  // stop(), then joins
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Any thread. Calls run in order, on the control thread; after stop() they are dropped.
  void call(Call call);
  TimerId at(Time time, Call call);
  void cancel(TimerId timer);  // no effect when it has run
  void stop();
  void join();  // after stop(), not on the control thread
  bool on_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Control thread only. `fd` is the caller's and must be removed before it is closed.
  void watch(int fd, uint32_t events, OnEvents on_events);
  void change(int fd, uint32_t events);
  void unwatch(int fd);

  Time last_turn() const { return Time(Time::duration(last_turn_.load(std::memory_order_relaxed))); }

 private:
  void run(const std::string& name);
  void wake();
  int run_due();  // milliseconds to the next timer, -1 when there is none
  void guarded(const char* what, const Call& call);

  GuardedFd epoll_;
  GuardedFd event_;
  std::mutex mutex_;
  std::vector<Call> calls_;
  std::multimap<Time, std::pair<TimerId, Call>> timers_;
  std::unordered_map<TimerId, Time> timer_times_;
  TimerId next_timer_ = 1;
  bool stopping_ = false;
  bool woken_ = false;
  std::atomic<Time::rep> last_turn_{0};
  std::unordered_map<int, std::shared_ptr<OnEvents>> watched_;  // control thread
  std::thread thread_;
};

}  // namespace nxl::kv
