// SPDX-License-Identifier: Apache-2.0
// Helpers spin for a bound after a job, because a decode step posts the next one within microseconds, then sleep.
#include "host/kernels/team.h"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace nxl::host {
namespace {

constexpr std::chrono::microseconds kSpin{50};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until `done()` or the bound has passed; true when done.
template <typename Done>
bool spin_until(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

Team& Team::of_this_thread() {
  static thread_local Team team;
  return team;
}

Team::~Team() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Team::take_pieces(Job& job) {
  for (;;) {
    const int64_t begin = job.next.fetch_add(job.piece, std::memory_order_relaxed);
    if (begin >= job.total) return;
    const int64_t count = std::min(job.piece, job.total - begin);
    job.call(job.work, begin, begin + count);
    if (job.left.fetch_sub(count, std::memory_order_acq_rel) == count) job.left.notify_all();
  }
}

void Team::run(int helpers, int64_t total, int64_t piece, Call call, const void* work) {
  try {
    while (static_cast<int>(helpers_.size()) < helpers) helpers_.emplace_back([this] { help(); });
  } catch (const std::system_error&) {
    // The system has no thread to give: the caller does the work with those it has.
  }
  auto job = std::make_shared<Job>(call, work, total, piece, helpers);
  job->left.store(total, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    job_ = job;
    posted_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  take_pieces(*job);
  if (spin_until([&] { return job->left.load(std::memory_order_acquire) == 0; })) return;
  for (int64_t left; (left = job->left.load(std::memory_order_acquire)) != 0;) job->left.wait(left);
}

void Team::help() {
  uint64_t seen = 0;
  const auto news = [&] {
    return posted_.load(std::memory_order_acquire) != seen || stop_.load(std::memory_order_acquire);
  };
  for (;;) {
    const bool soon = spin_until(news);
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      if (!soon) wake_.wait(lock, news);
      if (stop_.load(std::memory_order_relaxed)) return;
      seen = posted_.load(std::memory_order_relaxed);
      job = job_;
    }
    if (job->seats.fetch_sub(1, std::memory_order_relaxed) > 0) take_pieces(*job);
  }
}

}  // namespace nxl::host
