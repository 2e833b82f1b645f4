// SPDX-License-Identifier: Apache-2.0
// Tensors: named windows on a storage, which is device memory, host memory, or a buffer that the caller attached.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "host/memory.h"
#include "nrt_abi.h"

namespace nxl::host {

// Immutable once made; queued work holds a reference, so its memory outlives nrt_tensor_free.
struct Storage {
  int core = -1;  // -1: host memory
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<void> owner;  // empty for an attached buffer: the caller keeps that alive
};

// A range of a storage, checked when it is made.
struct View {
  std::shared_ptr<const Storage> storage;
  std::byte* address = nullptr;
  uint64_t bytes = 0;
};

// Thread safe.
class Tensor {
 public:
  static std::shared_ptr<Tensor> device(const std::shared_ptr<CoreMemory>& memory, int core, uint64_t bytes,
                                        std::string name);
  static std::shared_ptr<Tensor> host(uint64_t bytes, std::string name);
  static std::shared_ptr<Tensor> empty(std::string name);
  std::shared_ptr<Tensor> slice(uint64_t offset, uint64_t bytes, std::string name) const;

  // Puts the caller's buffer in place of whatever storage the tensor had.
  void attach(void* buffer, uint64_t bytes);
  // Called by nrt_tensor_free: sets that still name the tensor can no longer be executed.
  void mark_freed();

  // Throws INVALID when the tensor has no storage yet.
  View whole() const;
  // Throws INVALID naming the tensor, the range and the size.
  View range(uint64_t offset, uint64_t bytes) const;
  uint64_t bytes() const;
  const std::string& name() const { return name_; }

  // Changes when the storage changes or the tensor is freed: a cached binding compares it.
  uint32_t version() const { return version_.load(std::memory_order_acquire); }
  bool freed() const { return freed_.load(std::memory_order_acquire); }

  // Output completion: executions that wrote this tensor since the last reset.
  void count_completion();
  void reset_completions() { completions_.store(0); }
  // False at the deadline; no deadline waits until `give_up` (checked every 20 ms) says so.
  bool wait_for_completions(uint64_t count, std::optional<std::chrono::microseconds> timeout, bool (*give_up)());

 private:
  Tensor(std::string name, std::shared_ptr<const Storage> storage, uint64_t offset, uint64_t bytes)
      : name_(std::move(name)), storage_(std::move(storage)), offset_(offset), bytes_(bytes) {}

  const std::string name_;
  mutable std::mutex mutex_;  // guards the three members below
  std::shared_ptr<const Storage> storage_;
  uint64_t offset_;
  uint64_t bytes_;
  std::atomic<uint32_t> version_{0};
  std::atomic<bool> freed_{false};
  std::atomic<uint64_t> completions_{0};
};

// Both device on different cores: INVALID. Overlapping ranges copy as memmove does.
void check_copy(const View& source, const View& target);
void copy_bytes(const View& source, const View& target);

}  // namespace nxl::host
