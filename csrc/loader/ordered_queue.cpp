// SPDX-License-Identifier: Apache-2.0
// Tickets, completion, waiting and errors of one core.
#include "loader/ordered_queue.h"

#include <poll.h>

#include <thread>

#include "core/log.h"
#include "core/unique_handle.h"
#include "loader/bindings.h"
#include "loader/execution_timeout.h"

namespace nxl::loader {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxCores = 1024;
constexpr auto kSpin = std::chrono::microseconds(20);        // about what waking a sleeper costs
constexpr auto kPollSlice = std::chrono::milliseconds(100);  // a close by another thread is seen within this
constexpr auto kBackOff = std::chrono::microseconds(50);

std::array<std::atomic<OrderedQueue*>, kMaxCores> queues{};  // never freed: alive until process exit

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::chrono::milliseconds left_until(Clock::time_point deadline) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::max(deadline - Clock::now(), Clock::duration::zero()));
}

// What must happen to our objects before tensors or the runtime go away.
class LoaderObserver final : public nrt::Observer {
 public:
  void before_tensor_free(nrt_tensor_t* tensor) noexcept override { Bindings::get().forget(tensor); }
  void before_close(std::chrono::milliseconds bound) noexcept override { OrderedQueue::close_all(bound); }
};

const std::shared_ptr<const std::string>& write_label() {
  static const auto* label = new std::shared_ptr<const std::string>(new std::string("copy to the device"));
  return *label;
}

const std::shared_ptr<const std::string>& read_label() {
  static const auto* label = new std::shared_ptr<const std::string>(new std::string("copy from the device"));
  return *label;
}

}  // namespace

// Note: order between execution units. Copies and executions have a queue each in NRT, and it states no order between
// them. libnrt_host.so has one order for all (csrc/host/queue.h). Elsewhere the queue of one unit is let run empty
// before another unit gets work, so that at any time all that is in flight belongs to one unit. Either way: when the
// newest is complete, all are.

CoreQueue& CoreQueue::of(int core) { return OrderedQueue::of(core); }

CoreQueue* CoreQueue::find(int core) noexcept {
  return core >= 0 && core < kMaxCores ? queues[static_cast<size_t>(core)].load(std::memory_order_acquire) : nullptr;
}

OrderedQueue& OrderedQueue::of(int core) {
  if (core >= 0 && core < kMaxCores) {
    OrderedQueue* made = queues[static_cast<size_t>(core)].load(std::memory_order_acquire);
    if (made != nullptr) return *made;
  }
  std::shared_ptr<nrt::Runtime> runtime = nrt::Runtime::get();
  runtime->check_core(core);
  NXL_CHECK(core < kMaxCores, kUnsupported, "core ", core, ": at most ", kMaxCores, " cores per process are supported");
  execution_timeout();  // a bad value is reported here, not in the middle of work
  static std::mutex* const making = new std::mutex;
  const std::lock_guard lock(*making);
  std::atomic<OrderedQueue*>& place = queues[static_cast<size_t>(core)];
  if (place.load() == nullptr) {
    static LoaderObserver* const observer = new LoaderObserver;
    place.store(new OrderedQueue(std::move(runtime), core), std::memory_order_release);
    nrt::set_observer(observer);
  }
  return *place.load();
}

void OrderedQueue::close_all(std::chrono::milliseconds bound) noexcept {
  const Clock::time_point deadline = Clock::now() + bound;
  for (const std::atomic<OrderedQueue*>& place : queues) {
    OrderedQueue* queue = place.load(std::memory_order_acquire);
    if (queue == nullptr) continue;
    try {
      queue->wait(queue->submitted(), left_until(deadline));
    } catch (const std::exception& error) {
      NXL_LOG(kError, "waiting for core ", queue->core_, " before close: ", error.what());
    }
    queue->close();
  }
}

OrderedQueue::OrderedQueue(std::shared_ptr<nrt::Runtime> runtime, int core)
    : runtime_(std::move(runtime)),
      api_(runtime_->api()),
      core_(core),
      one_order_(runtime_->is_host()),
      tracker_(nrt::ErrorTracker::create(runtime_, core)) {}

bool OrderedQueue::idle() const noexcept {
  if (in_flight_count_.load(std::memory_order_acquire) == 0) return true;
  return const_cast<OrderedQueue*>(this)->refresh();
}

bool OrderedQueue::is_complete(uint64_t ticket) noexcept {
  if (completed_.load(std::memory_order_acquire) >= ticket) return true;
  refresh();
  return completed_.load(std::memory_order_acquire) >= ticket || !runtime_->is_open();
}

// True when nothing is in flight afterwards.
bool OrderedQueue::refresh() noexcept {
  // In a forked child the mutex may be held by a thread that does not exist, and nothing is in flight there.
  if (!runtime_->is_open()) return true;
  try {
    Finished finished;
    const std::lock_guard lock(mutex_);
    collect(finished);
  } catch (const std::exception& error) {
    NXL_LOG(kError, "core ", core_, ": ", error.what());
  }
  return in_flight_count_.load(std::memory_order_acquire) == 0;
}

bool OrderedQueue::completed_by_nrt(nrta_seq_t sequence) {
  bool completed = false;
  const int status = api_.nrta_is_completed(sequence, &completed);
  if (status == NRT_SUCCESS) return completed;
  // NRT no longer knows the sequence: waiting longer would never end.
  fail(status, "asking for the completion of work");
  return true;
}

// Moves what is complete out of in_flight_. The mutex is held.
void OrderedQueue::collect(Finished& finished) {
  if (in_flight_.empty()) return;
  size_t count = 0;
  if (completed_by_nrt(in_flight_.back().sequence)) {
    count = in_flight_.size();
  } else {
    while (count + 1 < in_flight_.size() && completed_by_nrt(in_flight_[count].sequence)) ++count;
  }
  if (count == 0) return;
  collect_errors();
  for (size_t i = 0; i < count; ++i) {
    if (in_flight_[i].keep_alive != nullptr) finished.push_back(std::move(in_flight_[i].keep_alive));
  }
  const uint64_t last = in_flight_[count - 1].ticket;
  in_flight_.erase(in_flight_.begin(), in_flight_.begin() + static_cast<std::ptrdiff_t>(count));
  completed_.store(last, std::memory_order_release);
  in_flight_count_.store(in_flight_.size(), std::memory_order_release);
}

void OrderedQueue::collect_errors() {
  for (const nrta_error_t& error : tracker_.list()) {
    const size_t unit = (error.seq_id >> 48) % last_error_.size();
    if (error.seq_id <= last_error_[unit]) continue;  // reported before
    last_error_[unit] = error.seq_id;
    const std::string* label = nullptr;
    for (const InFlight& work : in_flight_) {
      if (work.sequence == error.seq_id) label = work.label.get();
    }
    fail(static_cast<int>(error.error_code), label != nullptr ? *label : "earlier work", tracker_.reason(error.seq_id));
  }
}

void OrderedQueue::fail(int code, const std::string& label, const std::string& reason) {
  if (!first_error_.is_ok()) return;
  first_error_ = {code, detail::concat("neuron:", core_, ": ", label, " failed with ", runtime_->status_name(code),
                                       " (", code, ")", reason.empty() ? "" : ": ", reason)};
}

Status OrderedQueue::closed_status() const {
  return {NRT_CLOSED,
          detail::concat("neuron:", core_,
                         ": the Neuron runtime is closed in this process, or the process was forked after it "
                         "was initialised")};
}

Status OrderedQueue::before_schedule(nrta_xu_t unit, Finished& finished, uint64_t* wait_first) {
  if (closed_ || !runtime_->is_open()) return closed_status();
  if (!one_order_ && unit != last_unit_ && !in_flight_.empty()) {
    collect(finished);
    if (!in_flight_.empty()) *wait_first = in_flight_.back().ticket;
  }
  return Status::ok();
}

void OrderedQueue::after_schedule(Work&& work, nrta_seq_t sequence, uint64_t* ticket) {
  last_unit_ = work.unit;
  *ticket = submitted_.load(std::memory_order_relaxed) + 1;
  in_flight_.push_back({*ticket, sequence, std::move(work.label), std::move(work.keep_alive)});
  in_flight_count_.store(in_flight_.size(), std::memory_order_release);
  submitted_.store(*ticket, std::memory_order_release);
}

// `wait_first` 0: NRT's queue is full although nothing of ours is in flight; its own bookkeeping lags a moment.
Status OrderedQueue::make_room(uint64_t wait_first, Clock::time_point* deadline) {
  const std::chrono::milliseconds timeout = execution_timeout();
  if (*deadline == Clock::time_point{}) *deadline = Clock::now() + timeout;
  if (wait_first != 0) return wait(wait_first, left_until(*deadline));
  if (Clock::now() >= *deadline) return timeout_status(submitted(), timeout);
  std::this_thread::sleep_for(kBackOff);
  return Status::ok();
}

Status OrderedQueue::timeout_status(uint64_t ticket, std::chrono::milliseconds timeout) {
  std::string label = "work";
  if (runtime_->is_open()) {
    const std::lock_guard lock(mutex_);
    if (!in_flight_.empty()) label = *in_flight_.front().label;
  }
  return {NRT_TIMEOUT, detail::concat("neuron:", core_, ": ", label, " did not finish within ", timeout.count(),
                                      " ms (waiting for ticket ", ticket, " of ", submitted(),
                                      "; NEURON_LIBTORCH_EXECUTION_TIMEOUT sets the limit for executions)")};
}

Status OrderedQueue::wait(uint64_t ticket, std::chrono::milliseconds timeout) {
  if (completed_.load(std::memory_order_acquire) >= ticket) return Status::ok();
  if (ticket > submitted()) {
    return {NRT_INVALID,
            detail::concat("neuron:", core_, ": ticket ", ticket, " was never given, the newest is ", submitted())};
  }
  if (!runtime_->is_open()) return closed_status();
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = start + timeout;
  do {
    if (is_complete(ticket)) return Status::ok();
    for (int i = 0; i < 32; ++i) cpu_relax();
  } while (Clock::now() < start + kSpin);

  UniqueFd completion;
  while (!is_complete(ticket)) {
    const std::chrono::milliseconds left = left_until(deadline);
    if (left.count() <= 0) return timeout_status(ticket, timeout);
    if (!completion) {
      const std::lock_guard lock(mutex_);
      if (in_flight_.empty() || in_flight_.front().ticket > ticket) continue;  // done in between
      int fd = -1;
      const nrta_seq_t sequence = in_flight_[ticket - in_flight_.front().ticket].sequence;
      if (api_.nrta_get_completion_handle(sequence, &fd) == NRT_SUCCESS) completion.reset(fd);
    }
    if (completion) {
      pollfd poller{completion.get(), POLLIN, 0};
      const int ready = ::poll(&poller, 1, static_cast<int>(std::min(left, kPollSlice).count()));
      if (ready > 0 && !is_complete(ticket)) completion.reset();  // signalled early: ask again
    } else {
      std::this_thread::sleep_for(kBackOff);  // no descriptor to be had, or an early signal
    }
  }
  return Status::ok();
}

Status OrderedQueue::drain() { return wait(submitted(), execution_timeout()); }

Status OrderedQueue::take_error() {
  if (nrt::in_forked_child()) return Status::ok();  // nothing ran here, and the mutex may be held for ever
  Finished finished;
  const std::lock_guard lock(mutex_);
  if (!closed_) collect(finished);
  return std::exchange(first_error_, Status::ok());
}

uint64_t OrderedQueue::write(nrt_tensor_t* tensor, const void* source, uint64_t offset, uint64_t bytes,
                             std::shared_ptr<void> keep_alive) {
  uint64_t ticket = 0;
  const auto schedule = [&](nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
    return api_.nrta_tensor_write(tensor, source, offset, bytes, 0 /* queue */, tracker, sequence);
  };
  const Status status = submit({NRTA_XU_TENSOR_WRITE, write_label(), std::move(keep_alive)}, schedule, &ticket);
  if (!status.is_ok()) {
    nrt::throw_status(
        status.code, "nrta_tensor_write",
        status.message.empty() ? detail::concat(bytes, " bytes at ", offset, " on core ", core_) : status.message);
  }
  return ticket;
}

uint64_t OrderedQueue::read(void* target, nrt_tensor_t* tensor, uint64_t offset, uint64_t bytes,
                            std::shared_ptr<void> keep_alive) {
  uint64_t ticket = 0;
  const auto schedule = [&](nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
    return api_.nrta_tensor_read(target, tensor, offset, bytes, 0 /* queue */, tracker, sequence);
  };
  const Status status = submit({NRTA_XU_TENSOR_READ, read_label(), std::move(keep_alive)}, schedule, &ticket);
  if (!status.is_ok()) {
    nrt::throw_status(
        status.code, "nrta_tensor_read",
        status.message.empty() ? detail::concat(bytes, " bytes at ", offset, " on core ", core_) : status.message);
  }
  return ticket;
}

void OrderedQueue::close() noexcept {
  std::deque<InFlight> dropped;  // destroyed after the mutex is released
  nrt::ErrorTracker tracker;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (!in_flight_.empty()) {
    try {
      fail(NRT_CLOSED, *in_flight_.front().label);
    } catch (const std::exception&) {
      first_error_.code = NRT_CLOSED;  // no memory for the message
    }
  }
  dropped.swap(in_flight_);
  completed_.store(submitted_.load());
  in_flight_count_.store(0);
  tracker = std::move(tracker_);
}

}  // namespace nxl::loader
