// SPDX-License-Identifier: Apache-2.0
// The one implementation of CoreQueue: what is in flight, in order, and what came of it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "loader/core_queue.h"
#include "nrt/error_tracker.h"

namespace nxl::loader {

class OrderedQueue final : public CoreQueue {
 public:
  OrderedQueue(std::shared_ptr<nrt::Runtime> runtime, int core);
  static OrderedQueue& of(int core);
  // Drains every queue within `bound` in all, then refuses work. Work still in flight then is an error CLOSED.
  static void close_all(std::chrono::milliseconds bound) noexcept;

  uint64_t submitted() const noexcept override { return submitted_.load(std::memory_order_acquire); }
  uint64_t completed() const noexcept { return completed_.load(std::memory_order_acquire); }  // as last noticed
  bool idle() const noexcept override;
  bool is_complete(uint64_t ticket) noexcept override;
  Status wait(uint64_t ticket, std::chrono::milliseconds timeout) override;
  Status drain() override;
  Status take_error() override;
  uint64_t write(nrt_tensor_t* tensor, const void* source, uint64_t offset, uint64_t bytes,
                 std::shared_ptr<void> keep_alive) override;
  uint64_t read(void* target, nrt_tensor_t* tensor, uint64_t offset, uint64_t bytes,
                std::shared_ptr<void> keep_alive) override;

  // One call into NRT that queues work on `unit`.
  struct Work {
    nrta_xu_t unit;
    std::shared_ptr<const std::string> label;  // what an error names
    std::shared_ptr<void> keep_alive;
  };
  // Calls `schedule(tracker, &sequence)` in ticket order; waits while NRT's queue is full. No lock of the caller may be
  // held: finished work may release tensors here.
  template <typename Schedule>
  Status submit(Work work, Schedule&& schedule, uint64_t* ticket);

 private:
  struct InFlight {
    uint64_t ticket;
    nrta_seq_t sequence;
    std::shared_ptr<const std::string> label;
    std::shared_ptr<void> keep_alive;
  };
  using Finished = std::vector<std::shared_ptr<void>>;  // released after the mutex is

  Status before_schedule(nrta_xu_t unit, Finished& finished, uint64_t* wait_first);
  void after_schedule(Work&& work, nrta_seq_t sequence, uint64_t* ticket);
  Status make_room(uint64_t wait_first, std::chrono::steady_clock::time_point* deadline);
  void collect(Finished& finished);
  bool completed_by_nrt(nrta_seq_t sequence);
  void collect_errors();
  void fail(int code, const std::string& label, const std::string& reason = {});
  bool refresh() noexcept;
  void close() noexcept;
  Status closed_status() const;
  Status timeout_status(uint64_t ticket, std::chrono::milliseconds timeout);

  const std::shared_ptr<nrt::Runtime> runtime_;
  const nrt::Api& api_;
  const int core_;
  const bool one_order_;  // Note: order between execution units

  std::atomic<uint64_t> in_flight_count_{0};
  std::atomic<uint64_t> submitted_{0};
  std::atomic<uint64_t> completed_{0};

  std::mutex mutex_;  // guards everything below
  std::deque<InFlight> in_flight_;
  nrta_xu_t last_unit_ = NRTA_XU_COMPUTE;
  nrt::ErrorTracker tracker_;
  std::array<uint64_t, 1 << 4> last_error_{};  // per execution unit: the newest sequence reported
  Status first_error_;
  bool closed_ = false;
};

template <typename Schedule>
Status OrderedQueue::submit(Work work, Schedule&& schedule, uint64_t* ticket) {
  std::chrono::steady_clock::time_point deadline{};
  for (;;) {
    uint64_t wait_first = 0;
    {
      Finished finished;
      const std::lock_guard lock(mutex_);
      Status status = before_schedule(work.unit, finished, &wait_first);
      if (!status.is_ok()) return status;
      if (wait_first == 0) {
        nrta_seq_t sequence = 0;
        status.code = schedule(tracker_.get(), &sequence);
        if (status.is_ok()) {
          after_schedule(std::move(work), sequence, ticket);
          return status;
        }
        if (status.code != NRT_QUEUE_FULL) return status;
        wait_first = in_flight_.empty() ? 0 : in_flight_.front().ticket;
      }
    }
    Status status = make_room(wait_first, &deadline);
    if (!status.is_ok()) return status;
  }
}

}  // namespace nxl::loader
