// SPDX-License-Identifier: Apache-2.0
// Submission, the core's thread, waiting and completion descriptors.
#include "host/queue.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"
#include "host/edge.h"
#include "host/log.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

using Clock = std::chrono::steady_clock;

// Note: bounded spinning. Waking a sleeping thread costs tens of microseconds; a step loop submits again sooner than
// that. Nobody spins where the cores in use already fill the CPUs: there a spin steals the time it waits for.
constexpr auto kWorkSpin = std::chrono::microseconds(50);
constexpr auto kDoneSpin = std::chrono::microseconds(20);

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void signal_fd(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof(one));  // an eventfd at 0 takes a 1
}

}  // namespace

std::optional<Sequence> Sequence::decode(nrta_seq_t value) {
  const uint64_t unit = value >> kUnitShift;
  if (unit >= Queue::kUnits) return std::nullopt;
  return Sequence{static_cast<nrta_xu_t>(unit), static_cast<uint32_t>(value >> kNumberBits & 0xff),
                  value & ((uint64_t{1} << kNumberBits) - 1)};
}

nrta_seq_t Sequence::encode() const {
  return static_cast<uint64_t>(unit) << kUnitShift | static_cast<uint64_t>(core) << kNumberBits | number;
}

NRT_STATUS Queue::submit(nrta_xu_t unit, std::unique_ptr<Work> work, std::shared_ptr<ErrorTracker> tracker,
                         std::shared_ptr<Outcome> outcome, bool unbounded, uint64_t* number) {
  const uint64_t depth = unit == NRTA_XU_COMPUTE ? options_.compute_depth : options_.transfer_depth;
  std::unique_lock lock(mutex_);
  if (stopping_.load(std::memory_order_relaxed)) return NRT_CLOSED;
  const uint64_t last = submitted_[unit].load(std::memory_order_relaxed);
  if (!unbounded && last - completed_[unit].load(std::memory_order_relaxed) >= depth) return NRT_QUEUE_FULL;
  Item item{unit, last + 1, std::move(work), std::move(tracker), std::move(outcome)};

  if (items_.empty() && !running_ && item.work->may_run_inline()) {
    running_ = true;
    *number = last + 1;
    submitted_[unit].store(last + 1, std::memory_order_release);
    lock.unlock();
    run(item, 1);
    lock.lock();
    publish(item);
    if (!items_.empty() || stopping_) work_.notify_all();
    return NRT_SUCCESS;
  }

  if (!started_) start_thread();
  items_.push_back(std::move(item));
  *number = last + 1;
  submitted_[unit].store(last + 1, std::memory_order_release);
  pending_.store(static_cast<uint32_t>(items_.size()), std::memory_order_release);
  const bool wake = sleeping_;
  lock.unlock();
  if (wake) work_.notify_one();
  return NRT_SUCCESS;
}

void* Queue::thread_main(void* queue) {
  const std::unique_ptr<std::shared_ptr<Queue>> self(static_cast<std::shared_ptr<Queue>*>(queue));
  (*self)->serve();
  return nullptr;
}

// A pthread, because stop() needs a join with a deadline, which std::thread does not have.
void Queue::start_thread() {
  auto self = std::make_unique<std::shared_ptr<Queue>>(shared_from_this());
  const int error = pthread_create(&thread_, nullptr, thread_main, self.get());
  if (error != 0) refuse(NRT_RESOURCE, "core ", options_.core, ": starting its thread: ", std::strerror(error));
  static_cast<void>(self.release());
  started_ = true;
}

void Queue::spin_for_work() {
  if (!share_->may_spin()) return;
  const auto deadline = Clock::now() + kWorkSpin;
  while (pending_.load(std::memory_order_acquire) == 0 && !stopping_.load(std::memory_order_relaxed)) {
    for (int i = 0; i < 32; ++i) cpu_relax();
    if (Clock::now() >= deadline) return;
  }
}

void Queue::serve() {
  pthread_setname_np(pthread_self(), ("nrt_host/" + std::to_string(options_.core)).c_str());
  for (;;) {
    if (pending_.load(std::memory_order_acquire) == 0) spin_for_work();
    std::unique_lock lock(mutex_);
    while ((items_.empty() || running_) && !stopping_) {
      sleeping_ = true;
      work_.wait(lock);
      sleeping_ = false;
    }
    if (stopping_) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    pending_.store(static_cast<uint32_t>(items_.size()), std::memory_order_relaxed);
    running_ = true;
    lock.unlock();
    run(item, share_->threads());
    lock.lock();
    publish(item);
  }
}

void Queue::run(Item& item, int threads) {
  Status status;
  try {
    status = item.work->run(threads);
  } catch (...) {
    status = status_of_exception();
    if (status.code == NRT_FAILURE) status.code = NRT_EXEC_COMPLETED_WITH_ERR;
  }
  item.work.reset();
  if (!status.is_ok()) {
    log_parts(LogLevel::kError, "core ", options_.core, ": ",
              nrt_get_status_as_str(static_cast<NRT_STATUS>(status.code)), ": ", status.message);
    if (item.tracker) {
      item.tracker->add(Sequence{item.unit, options_.core, item.number}.encode(), static_cast<NRT_STATUS>(status.code),
                        status.message);
    }
  }
  item.tracker.reset();
  if (item.outcome) item.outcome->status = std::move(status);
}

void Queue::publish(const Item& item) {
  running_ = false;
  completed_[item.unit].store(item.number, std::memory_order_release);
  if (waiters_ != 0 || stopping_) done_.notify_all();
  if (watches_.empty()) return;
  std::erase_if(watches_, [&](const Watch& watch) {
    if (watch.unit != item.unit || watch.number > item.number) return false;
    signal_fd(watch.fd);
    ::close(watch.fd);
    return true;
  });
}

bool Queue::wait(nrta_xu_t unit, uint64_t number) {
  const auto complete = [&] { return completed(unit) >= number; };
  if (complete()) return true;
  if (share_->may_spin()) {
    const auto deadline = Clock::now() + kDoneSpin;
    do {
      for (int i = 0; i < 32; ++i) cpu_relax();
      if (complete()) return true;
    } while (Clock::now() < deadline);
  }
  std::unique_lock lock(mutex_);
  ++waiters_;
  done_.wait(lock, [&] { return complete() || (stopping_ && !running_); });
  --waiters_;
  return complete();
}

int Queue::completion_fd(nrta_xu_t unit, uint64_t number) {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return -1;
  std::lock_guard lock(mutex_);
  // After stop() nothing will complete any more: the descriptor tells the poller so by being readable.
  if (completed(unit) >= number || stopping_) {
    signal_fd(fd);
    return fd;
  }
  const int ours = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (ours < 0) {
    ::close(fd);
    return -1;
  }
  watches_.push_back({unit, number, ours});
  return fd;
}

bool Queue::stop(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::system_clock::now() + patience;  // the clock of pthread_timedjoin_np
  std::deque<Item> dropped;
  std::unique_lock lock(mutex_);
  stopping_.store(true);
  dropped.swap(items_);
  pending_.store(0);
  work_.notify_all();
  done_.notify_all();
  bool quiet = done_.wait_until(lock, deadline, [&] { return !running_; });
  for (const Watch& watch : watches_) {
    signal_fd(watch.fd);
    ::close(watch.fd);
  }
  watches_.clear();
  const bool join = started_ && !pthread_equal(thread_, pthread_self());
  lock.unlock();
  dropped.clear();  // outside the lock: work gives device memory back
  if (!join) return quiet;
  const auto since_epoch = deadline.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
  const timespec until{static_cast<time_t>(seconds.count()),
                       static_cast<long>(std::chrono::nanoseconds(since_epoch - seconds).count())};
  if (pthread_timedjoin_np(thread_, nullptr, &until) != 0) {
    pthread_detach(thread_);
    quiet = false;
  }
  return quiet;
}

}  // namespace nxl::host
