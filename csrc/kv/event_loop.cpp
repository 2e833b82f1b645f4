// SPDX-License-Identifier: Apache-2.0
// epoll, an eventfd to wake it, timers in a sorted map.
#include "kv/event_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

namespace nxl::kv {

EventLoop::EventLoop(const std::string& name)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  NXL_CHECK(epoll_ && event_, kUnavailable, "control thread of ", name, ": ", std::strerror(errno));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = event_.get();
  NXL_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event) == 0, kUnavailable, "control thread of ",
            name, ": ", std::strerror(errno));
  // The thread takes no signal that the process handles elsewhere.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, name] { run(name); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

EventLoop::~EventLoop() {
  stop();
  join();
}

void EventLoop::join() {
  if (thread_.joinable()) thread_.join();
}

void EventLoop::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void EventLoop::call(Call call) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  calls_.push_back(std::move(call));
  if (!std::exchange(woken_, true)) wake();
}

EventLoop::TimerId EventLoop::at(Time time, Call call) {
  const std::lock_guard lock(mutex_);
  const TimerId id = next_timer_++;
  if (stopping_) return id;
  const bool earliest = timers_.empty() || time < timers_.begin()->first;
  timers_.emplace(time, std::pair(id, std::move(call)));
  timer_times_.emplace(id, time);
  if (earliest && !std::exchange(woken_, true)) wake();
  return id;
}

void EventLoop::cancel(TimerId timer) {
  const std::lock_guard lock(mutex_);
  const auto time = timer_times_.find(timer);
  if (time == timer_times_.end()) return;
  const auto [begin, end] = timers_.equal_range(time->second);
  timers_.erase(std::find_if(begin, end, [timer](const auto& entry) { return entry.second.first == timer; }));
  timer_times_.erase(time);
}

void EventLoop::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  wake();
}

void EventLoop::watch(int fd, uint32_t events, OnEvents on_events) {
  watched_[fd] = std::make_shared<OnEvents>(std::move(on_events));
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    watched_.erase(fd);
    throw_error(ErrorKind::kUnavailable, std::string("epoll_ctl: ") + std::strerror(error));
  }
}

void EventLoop::change(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::unwatch(int fd) {
  if (watched_.erase(fd) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::guarded(const char* what, const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    NXL_LOG(kError, "kv control thread, ", what, ": ", error.what());
  }
}

int EventLoop::run_due() {
  while (true) {
    Call due;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return 0;
      if (timers_.empty()) return -1;
      const auto left = timers_.begin()->first - std::chrono::steady_clock::now();
      if (left > Time::duration::zero()) {
        // Rounded up: to wake early would only be to sleep again.
        const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
        return static_cast<int>(std::min<int64_t>(ms, 60'000));
      }
      due = std::move(timers_.begin()->second.second);
      timer_times_.erase(timers_.begin()->second.first);
      timers_.erase(timers_.begin());
    }
    guarded("timer", due);
  }
}

void EventLoop::run(const std::string& name) {
  pthread_setname_np(pthread_self(), ("kv:" + name).substr(0, 15).c_str());
  std::vector<epoll_event> events(64);
  while (true) {
    const int timeout = run_due();
    last_turn_.store(std::chrono::steady_clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    std::vector<Call> calls;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
      calls.swap(calls_);
    }
    for (const Call& call : calls) guarded("call", call);
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), calls.empty() ? timeout : 0);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == event_.get()) {
        uint64_t value = 0;
        [[maybe_unused]] const ssize_t got = ::read(fd, &value, sizeof value);
        const std::lock_guard lock(mutex_);
        woken_ = false;
        continue;
      }
      const auto it = watched_.find(fd);
      if (it == watched_.end()) continue;  // removed by an earlier one of this round
      const std::shared_ptr<OnEvents> keep = it->second;
      const uint32_t what = events[static_cast<size_t>(i)].events;
      guarded("socket", [&] { (*keep)(what); });
    }
  }
  // What the dropped calls hold goes here, outside of every lock.
  std::vector<Call> dropped;
  std::multimap<Time, std::pair<TimerId, Call>> timers;
  const std::lock_guard lock(mutex_);
  dropped.swap(calls_);
  timers.swap(timers_);
  timer_times_.clear();  // a later cancel() must not look for what is gone
}

}  // namespace nxl::kv
