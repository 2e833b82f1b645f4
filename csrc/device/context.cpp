// SPDX-License-Identifier: Apache-2.0
// Runtime access with a fork guard, the current device, and waiting on a core's queue.
#include "device/context.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "device/error_edge.h"
#include "device/memory.h"
#include "loader/execution_timeout.h"

namespace nxl::device {
namespace {

// Leaked on purpose: tensors, streams and generators of other libraries may be destroyed after our statics.
struct State {
  std::mutex mutex;
  std::shared_ptr<nrt::Runtime> runtime;
  std::atomic<nrt::Runtime*> open_runtime{nullptr};
  std::atomic<bool> bad_fork{false};
  std::array<std::atomic<loader::CoreQueue*>, kMaxDevices> queues{};
  // The newest ticket whose outcome a reader has already asked for, per device.
  std::array<std::atomic<uint64_t>, kMaxDevices> reported{};
};

State& state() {
  static State* const instance = new State();
  return *instance;
}

thread_local c10::DeviceIndex t_current_device = 0;

void mark_child() { state().bad_fork.store(true, std::memory_order_relaxed); }

[[noreturn, gnu::cold]] void throw_bad_fork() {
  throw_error(ErrorKind::kUnavailable,
              "The neuron device cannot be used in a forked subprocess of a process that has already used it: its "
              "threads and device handles do not survive fork. Start the process with "
              "multiprocessing.get_context('spawn'), or fork before the first use of the device.");
}

[[noreturn, gnu::cold]] void throw_closed() {
  throw_error(
      ErrorKind::kClosed,
      "The neuron runtime of this process has been closed; device memory can no longer be used. Move tensors to "
      "the CPU before the call to unsafe_close().");
}

// Throws the first execution error that no reader has seen yet.
void report_errors(loader::CoreQueue& queue, c10::DeviceIndex device, uint64_t ticket) {
  auto& reported = state().reported[device];
  uint64_t seen = reported.load(std::memory_order_relaxed);
  if (seen >= ticket) return;
  while (seen < ticket && !reported.compare_exchange_weak(seen, ticket, std::memory_order_relaxed)) {
  }
  const Status error = queue.take_error();
  if (!error.is_ok()) {
    throw_error(ErrorKind::kExecution, error.message, error.code);
  }
}

}  // namespace

std::shared_ptr<nrt::Runtime> runtime() {
  State& s = state();
  if (s.bad_fork.load(std::memory_order_relaxed)) throw_bad_fork();
  const std::lock_guard lock(s.mutex);
  if (s.runtime == nullptr) {
    s.runtime = nrt::Runtime::get();
    pthread_atfork(nullptr, nullptr, mark_child);
    s.open_runtime.store(s.runtime.get(), std::memory_order_release);
  }
  if (!s.runtime->is_open()) throw_closed();
  return s.runtime;
}

bool runtime_is_open() noexcept {
  const nrt::Runtime* open = state().open_runtime.load(std::memory_order_acquire);
  return open != nullptr && open->is_open();
}

bool in_bad_fork() noexcept { return state().bad_fork.load(std::memory_order_relaxed); }

c10::DeviceIndex get_current_device() noexcept { return t_current_device; }

void set_current_device_unchecked(c10::DeviceIndex device) noexcept { t_current_device = device; }

void set_current_device(c10::DeviceIndex device) {
  if (device != t_current_device) {
    check_device(device);
    t_current_device = device;
  }
}

c10::DeviceIndex visible_devices() {
  const nrt::Runtime* open = state().open_runtime.load(std::memory_order_acquire);
  const int count = open != nullptr ? open->core_count() : nrt::visible_core_count();
  return static_cast<c10::DeviceIndex>(std::clamp(count, 0, kMaxDevices - 1));
}

void check_device(c10::DeviceIndex device) {
  const int count = visible_devices();
  if (__builtin_expect(device >= 0 && device < count, 1)) return;
  if (count == 0) {
    throw_error(ErrorKind::kInvalid, detail::concat("neuron:", static_cast<int>(device),
                                                    " does not exist: no neuron core is visible to this process. "
                                                    "NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES selects cores."));
  }
  throw_error(ErrorKind::kInvalid,
              detail::concat("neuron:", static_cast<int>(device), " does not exist: this process sees ", count,
                             count == 1 ? " neuron core, neuron:0" : " neuron cores, neuron:0 to neuron:",
                             count == 1 ? "" : std::to_string(count - 1),
                             ". NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES sets which cores are visible; set it "
                             "before the first use of the device."));
}

loader::CoreQueue* queue_if_used(c10::DeviceIndex device) noexcept {
  if (device < 0) return nullptr;
  auto& slot = state().queues[device];
  loader::CoreQueue* queue = slot.load(std::memory_order_acquire);
  if (__builtin_expect(queue == nullptr, 0)) {
    queue = loader::CoreQueue::find(device);
    if (queue != nullptr) slot.store(queue, std::memory_order_release);
  }
  return queue;
}

bool is_idle(c10::DeviceIndex device) noexcept {
  const loader::CoreQueue* queue = queue_if_used(device);
  return queue == nullptr || queue->idle();
}

void synchronize(c10::DeviceIndex device) {
  if (in_bad_fork()) throw_bad_fork();
  loader::CoreQueue* queue = queue_if_used(device);
  if (queue == nullptr) return;
  const uint64_t ticket = queue->submitted();
  if (!queue->idle()) {
    const Status status = queue->drain();
    if (!status.is_ok()) throw_error(ErrorKind::kExecution, status.message, status.code);
  }
  report_errors(*queue, device, ticket);
}

void synchronize(c10::DeviceIndex device, uint64_t ticket) {
  if (in_bad_fork()) throw_bad_fork();
  loader::CoreQueue* queue = queue_if_used(device);
  if (queue == nullptr || ticket == 0) return;
  if (!queue->is_complete(ticket)) {
    const Status status = queue->wait(ticket, loader::execution_timeout());
    if (!status.is_ok()) throw_error(ErrorKind::kExecution, status.message, status.code);
  }
  report_errors(*queue, device, ticket);
}

// The part of device/memory.h that is about waiting and counting.

void wait_for_host_access(c10::DeviceIndex device) {
  const State& s = state();
  const nrt::Runtime* open = s.open_runtime.load(std::memory_order_acquire);
  const loader::CoreQueue* queue = queue_if_used(device);
  if (__builtin_expect(open != nullptr && open->is_open() && !in_bad_fork(), 1)) {
    if (queue == nullptr) return;
    if (queue->idle() && s.reported[device].load(std::memory_order_relaxed) >= queue->submitted()) {
      std::atomic_thread_fence(std::memory_order_acquire);  // idle() is relaxed: see what the core has written
      return;
    }
  }
  at_torch_edge([&] {
    runtime();  // throws after close and after fork
    synchronize(device);
    std::atomic_thread_fence(std::memory_order_acquire);
  });
}

bool host_visible(c10::DeviceIndex device) {
  return at_torch_edge([&] {
    check_device(device);
    return runtime()->is_host();
  });
}

c10::DeviceIndex current_device() noexcept { return get_current_device(); }

c10::DeviceIndex device_count() {
  return at_torch_edge([] { return visible_devices(); });
}

c10::DeviceIndex resolve_device(c10::DeviceIndex device) {
  if (device < 0) return get_current_device();
  at_torch_edge([&] { check_device(device); });
  return device;
}

}  // namespace nxl::device
