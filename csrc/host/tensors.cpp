// SPDX-License-Identifier: Apache-2.0
// Tensors, their storages and output completion.
#include "host/tensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>

#include "core/checked.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

// One for the process, never destroyed: waiting for output completion is rare, counting it is not.
struct CompletionSignal {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> waiters{0};
};
CompletionSignal& completion_signal() {
  static auto* signal = new CompletionSignal;
  return *signal;
}

}  // namespace

std::shared_ptr<Tensor> Tensor::device(const std::shared_ptr<CoreMemory>& memory, int core, uint64_t bytes,
                                       std::string name) {
  auto allocation = memory->allocate(bytes);
  auto storage = std::make_shared<Storage>();
  *storage = {core, allocation->address(), bytes, allocation};
  return std::shared_ptr<Tensor>(new Tensor(std::move(name), std::move(storage), 0, bytes));
}

std::shared_ptr<Tensor> Tensor::host(uint64_t bytes, std::string name) {
  // Pages of its own: host memory can then be registered without sharing a page with anything else.
  const size_t mapped = std::max<size_t>(bytes, 1);
  void* buffer = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) {
    refuse(NRT_RESOURCE, "host memory: ", bytes, " bytes for tensor '", name, "' are not available");
  }
  std::shared_ptr<void> owner(buffer, [mapped](void* pages) { munmap(pages, mapped); });
  auto storage = std::make_shared<Storage>();
  *storage = {-1, static_cast<std::byte*>(buffer), bytes, std::move(owner)};
  return std::shared_ptr<Tensor>(new Tensor(std::move(name), std::move(storage), 0, bytes));
}

std::shared_ptr<Tensor> Tensor::empty(std::string name) {
  return std::shared_ptr<Tensor>(new Tensor(std::move(name), nullptr, 0, 0));
}

std::shared_ptr<Tensor> Tensor::slice(uint64_t offset, uint64_t bytes, std::string name) const {
  const View view = range(offset, bytes);
  const auto start = static_cast<uint64_t>(view.address - view.storage->address);
  return std::shared_ptr<Tensor>(new Tensor(std::move(name), view.storage, start, bytes));
}

void Tensor::attach(void* buffer, uint64_t bytes) {
  if (buffer == nullptr) refuse(NRT_INVALID, "tensor '", name_, "': the buffer to attach is null");
  auto storage = std::make_shared<Storage>();
  *storage = {-1, static_cast<std::byte*>(buffer), bytes, nullptr};
  std::lock_guard lock(mutex_);
  storage_ = std::move(storage);
  offset_ = 0;
  bytes_ = bytes;
  version_.fetch_add(1, std::memory_order_release);
}

void Tensor::mark_freed() {
  freed_.store(true, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_release);
}

View Tensor::whole() const {
  std::lock_guard lock(mutex_);
  if (!storage_) refuse(NRT_INVALID, "tensor '", name_, "' has no storage: attach a buffer first");
  return {storage_, storage_->address + offset_, bytes_};
}

View Tensor::range(uint64_t offset, uint64_t bytes) const {
  View view = whole();
  if (!range_within(offset, bytes, view.bytes)) {
    refuse(NRT_INVALID, "tensor '", name_, "': ", bytes, " bytes at offset ", offset, " are outside its ", view.bytes,
           " bytes");
  }
  view.address += offset;
  view.bytes = bytes;
  return view;
}

uint64_t Tensor::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

void Tensor::count_completion() {
  completions_.fetch_add(1);
  CompletionSignal& signal = completion_signal();
  // Sequentially consistent on both sides: either the waiter sees the count or we see the waiter.
  if (signal.waiters.load() == 0) return;
  { std::lock_guard lock(signal.mutex); }
  signal.changed.notify_all();
}

bool Tensor::wait_for_completions(uint64_t count, std::optional<std::chrono::microseconds> timeout, bool (*give_up)()) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kGiveUpCheck = std::chrono::milliseconds(20);
  if (completions_.load() >= count) return true;
  const auto start = Clock::now();
  CompletionSignal& signal = completion_signal();
  std::unique_lock lock(signal.mutex);
  signal.waiters.fetch_add(1);
  bool done = false;
  while (!(done = completions_.load() >= count) && !give_up()) {
    const auto now = Clock::now();
    if (timeout && now - start >= *timeout) break;
    auto wake = now + kGiveUpCheck;
    if (timeout && *timeout - (now - start) < kGiveUpCheck) wake = start + *timeout;
    signal.changed.wait_until(lock, wake);
  }
  signal.waiters.fetch_sub(1);
  return done;
}

void check_copy(const View& source, const View& target) {
  const int from = source.storage->core;
  const int to = target.storage->core;
  if (from >= 0 && to >= 0 && from != to) {
    refuse(NRT_INVALID, "a copy between device tensors of core ", from, " and core ", to,
           " is not possible: both must be on one core; go through the host or use send/receive");
  }
}

void copy_bytes(const View& source, const View& target) {
  if (source.bytes != 0) std::memmove(target.address, source.address, source.bytes);
}

}  // namespace nxl::host
