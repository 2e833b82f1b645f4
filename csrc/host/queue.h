// SPDX-License-Identifier: Apache-2.0
// The work queue of one core: one FIFO and one thread for all execution units, so that every unit's work is ordered
// with every other's.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/status.h"
#include "host/cpu_share.h"
#include "host/error_trackers.h"
#include "nrt_abi.h"

namespace nxl::host {

// One queued piece of work. Destroyed before its completion shows, so the memory it holds is free by then.
class Work {
 public:
  virtual ~Work() = default;
  virtual Status run(int threads) = 0;  // on the core's thread; may throw
  // True when it may run on the caller's thread, which the queue does only while nothing is queued or running.
  virtual bool may_run_inline() const { return false; }
};

// What a synchronous caller waits for.
struct Outcome {
  Status status;  // written before the completion is published
};

// A sequence value, nrta_seq_t: bits 48-63 execution unit, 40-47 core, 0-39 number (from 1, consecutive per unit).
struct Sequence {
  nrta_xu_t unit;
  uint32_t core;
  uint64_t number;

  static constexpr int kNumberBits = 40;
  static constexpr int kUnitShift = 48;
  static std::optional<Sequence> decode(nrta_seq_t value);  // nothing for an unknown unit
  nrta_seq_t encode() const;
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  static constexpr int kUnits = NRTA_XU_COLLECTIVES + 1;

  struct Options {
    uint32_t core = 0;
    uint64_t compute_depth = 8;    // NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS
    uint64_t transfer_depth = 64;  // each other unit
  };

  Queue(Options options, std::shared_ptr<CpuShare> share) : options_(options), share_(std::move(share)) {}

  // Queues the work and stores its number. QUEUE_FULL when the unit has its depth of work that is not complete, unless
  // `unbounded` (the synchronous calls, of which there is one a thread). CLOSED after stop().
  NRT_STATUS submit(nrta_xu_t unit, std::unique_ptr<Work> work, std::shared_ptr<ErrorTracker> tracker,
                    std::shared_ptr<Outcome> outcome, bool unbounded, uint64_t* number);

  uint64_t submitted(nrta_xu_t unit) const { return submitted_[unit].load(std::memory_order_acquire); }
  uint64_t completed(nrta_xu_t unit) const { return completed_[unit].load(std::memory_order_acquire); }

  // Spins for a bound, then sleeps until the number is complete. False when stop() came first.
  bool wait(nrta_xu_t unit, uint64_t number);

  // An eventfd that becomes readable when the number is complete; the caller closes it. -1 when there is none left.
  int completion_fd(nrta_xu_t unit, uint64_t number);

  // Drops what has not started, then waits up to `patience` for the running work and the thread. False when that was
  // not enough: the thread is left behind and ends after its work. Called once.
  bool stop(std::chrono::milliseconds patience);

 private:
  struct Item {
    nrta_xu_t unit = NRTA_XU_COMPUTE;
    uint64_t number = 0;
    std::unique_ptr<Work> work;
    std::shared_ptr<ErrorTracker> tracker;
    std::shared_ptr<Outcome> outcome;
  };
  struct Watch {
    nrta_xu_t unit;
    uint64_t number;
    int fd;  // ours; the caller holds another descriptor of the same eventfd
  };

  static void* thread_main(void* queue);
  void start_thread();  // with mutex_
  void serve();
  void spin_for_work();
  void run(Item& item, int threads);  // without mutex_
  void publish(const Item& item);     // with mutex_

  const Options options_;
  const std::shared_ptr<CpuShare> share_;

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<Item> items_;
  std::vector<Watch> watches_;
  bool started_ = false;  // thread_ is valid
  pthread_t thread_{};
  bool sleeping_ = false;
  bool running_ = false;
  int waiters_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> pending_{0};  // items_.size() for the spin without the lock
  std::array<std::atomic<uint64_t>, kUnits> submitted_{};
  std::array<std::atomic<uint64_t>, kUnits> completed_{};
};

}  // namespace nxl::host
