// SPDX-License-Identifier: Apache-2.0
// The threads that copy: a queue, first in first out, and a fixed number of threads that start at the first job.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/api.h"

namespace nxl::kv {

class NXL_API CopyWorkers {
 public:
  using Job = std::function<void()>;

  CopyWorkers(std::string name, uint32_t threads) : name_(std::move(name)), threads_(threads) {}
  ~CopyWorkers();  // runs what is queued, then joins; not on one of its own threads
  CopyWorkers(const CopyWorkers&) = delete;
  CopyWorkers& operator=(const CopyWorkers&) = delete;

  // Any thread. Throws std::system_error when the first thread cannot be started.
  void submit(Job job);
  uint32_t threads() const { return threads_; }
  bool idle() const;  // nothing queued and nothing running

 private:
  void run(uint32_t index);

  const std::string name_;
  const uint32_t threads_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> jobs_;
  uint32_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> running_;
};

}  // namespace nxl::kv
