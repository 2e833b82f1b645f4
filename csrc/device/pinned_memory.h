// SPDX-License-Identifier: Apache-2.0
// Pinned host memory: CPU buffers from which the device can copy without the CPU, cached by size.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "nrt/tensor.h"

namespace nxl::device {

// One buffer of a power-of-two size. On the host runtime it is an anonymous mapping; on a chip an NRT host tensor,
// which NRT has registered for DMA.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes);  // throws nxl::Error(kOutOfMemory)
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  std::byte* address() const { return address_; }
  size_t size() const { return size_; }

 private:
  std::byte* address_ = nullptr;
  size_t size_;
  nrt::Tensor tensor_;  // empty on the host runtime
};

// Thread safe, never takes the GIL. A buffer is reused as soon as its tensor is gone: a queued copy holds the tensor's
// storage until it is done, so a freed buffer has no copy in flight.
class PinnedAllocator final : public at::HostAllocator {
 public:
  // Called by Tensor.pin_memory and by DataLoader's pinning thread. Initialises the runtime.
  at::DataPtr allocate(size_t bytes) override;
  void copy_data(void* target, const void* source, size_t bytes) const override;
  // Called when a pinned tensor was used on a stream; true: it is one of ours, and see above for why that is enough.
  bool record_event(void* pointer, void* context, c10::Stream stream) override;
  // Called by torch.accelerator.empty_host_cache.
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  // Called by Tensor.is_pinned for every CPU pointer; must be quick when nothing is pinned. False in a forked child.
  bool owns(const void* pointer) const noexcept;

 private:
  static constexpr size_t kSizeClasses = 64;  // by bit width
  static void release(void* context);
  void take_back(PinnedBuffer* buffer) noexcept;

  mutable std::shared_mutex table_mutex_;  // guards by_address_
  std::map<const std::byte*, std::unique_ptr<PinnedBuffer>> by_address_;
  std::mutex mutex_;  // guards free_ and stats_
  std::array<std::vector<PinnedBuffer*>, kSizeClasses> free_;
  at::HostStats stats_;
};

PinnedAllocator& pinned_allocator();

}  // namespace nxl::device
