// SPDX-License-Identifier: Apache-2.0
// One visible core: its memory, its queue and the use that is made of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "host/cpu_share.h"
#include "host/memory.h"
#include "host/queue.h"

namespace nxl::host {

class Core {
 public:
  Core(int index, int absolute_id, uint64_t memory_limit, bool inline_programs, Queue::Options options,
       std::shared_ptr<CpuShare> share)
      : index_(index),
        absolute_id_(absolute_id),
        inline_programs_(inline_programs),
        memory_(std::make_shared<CoreMemory>(index, memory_limit)),
        share_(share),
        queue_(std::make_shared<Queue>(options, std::move(share))) {}

  int index() const { return index_; }              // in the visible list
  int absolute_id() const { return absolute_id_; }  // on the host
  const std::shared_ptr<CoreMemory>& memory() const { return memory_; }
  // Whether small programs may run on the caller's thread: off unless asked for, because kernels then see that thread's
  // state (torch's dispatch modes and autocast are per thread).
  bool inline_programs() const { return inline_programs_; }
  Queue& queue() const { return *queue_; }

  // A core with at least one model counts as in use for the thread policy.
  void model_loaded() {
    if (models_.fetch_add(1) == 0) share_->core_taken_up();
  }
  void model_unloaded() {
    if (models_.fetch_sub(1) == 1) share_->core_given_up();
  }

 private:
  const int index_;
  const int absolute_id_;
  const bool inline_programs_;
  const std::shared_ptr<CoreMemory> memory_;
  const std::shared_ptr<CpuShare> share_;
  const std::shared_ptr<Queue> queue_;
  std::atomic<int> models_{0};
};

}  // namespace nxl::host
