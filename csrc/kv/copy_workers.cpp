// SPDX-License-Identifier: Apache-2.0
// A small thread pool.
#include "kv/copy_workers.h"

#include <pthread.h>
#include <signal.h>

#include "core/error.h"
#include "core/log.h"

namespace nxl::kv {

CopyWorkers::~CopyWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : running_) thread.join();
}

void CopyWorkers::submit(Job job) {
  {
    const std::lock_guard lock(mutex_);
    if (idle_ <= jobs_.size() && running_.size() < threads_) {
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        running_.emplace_back([this, index = static_cast<uint32_t>(running_.size())] { run(index); });
      } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (running_.empty()) throw;
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    jobs_.push_back(std::move(job));
  }
  ready_.notify_one();
}

bool CopyWorkers::idle() const {
  const std::lock_guard lock(mutex_);
  return jobs_.empty() && idle_ == running_.size();
}

void CopyWorkers::run(uint32_t index) {
  pthread_setname_np(pthread_self(), (name_ + std::to_string(index)).substr(0, 15).c_str());
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    ready_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    --idle_;
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    try {
      job();
    } catch (const std::exception& error) {
      NXL_LOG(kError, "kv copy thread ", name_, ": ", error.what());
    }
    job = nullptr;
    lock.lock();
  }
}

}  // namespace nxl::kv
