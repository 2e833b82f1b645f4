// SPDX-License-Identifier: Apache-2.0
// The neuron device's c10 allocator: one memory pool per device behind PyTorch's interface.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>
#include <utility>

#include "device/context.h"
#include "device/memory_pool.h"

namespace nxl::device {

// Note "Reuse without waiting". A freed block is given to the next tensor at once, without asking whether the device is
// done with it. That is safe because there are only two kinds of writers:
//   - the device: executions and queued copies of a core run in one queue, in order, whatever stream they were issued
//     on. Work of the new owner is queued behind all work of the old one.
//   - the host: every host access to device memory (fallback kernels, copies, .item()) is preceded by
//     wait_for_host_access, which returns only when the core has nothing in flight.
// For the same reason recordStream has nothing to record. Only giving memory back to NRT needs a wait, and that is done
// by empty_cache and by the retry after an out-of-memory answer.
class NXL_API NeuronAllocator final : public c10::DeviceAllocator {
 public:
  // Called by every factory function; allocates on the thread's current device. Zero bytes: a null pointer.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes);
  // Called by clone() of a DataPtr, between two allocations of this allocator. Waits for the device.
  void copy_data(void* target, const void* source, size_t bytes) const override;

  // Called by torch.accelerator before it asks for memory figures; true after the first allocation. Never throws.
  bool initialized() override { return initialized_.load(std::memory_order_relaxed); }
  // Called by torch.accelerator.empty_cache: all devices. The pool id is for graph capture, which we do not offer.
  void emptyCache(c10::MempoolId_t mempool_id = {0, 0}) override;
  // Called by Tensor.record_stream; see the note. Checks that the stream is one of ours.
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  // {free, total} bytes of the core, as NRT counts them; memory that this allocator caches counts as used.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  void empty_cache(c10::DeviceIndex device);
  size_t largest_free_block(c10::DeviceIndex device);
  // The block of a DataPtr that this allocator made, nullptr for any other.
  static Block* block_of(const c10::DataPtr& pointer) noexcept;

 private:
  MemoryPool& pool(c10::DeviceIndex device);  // throws nxl::Error for an index outside the visible cores

  std::atomic<bool> initialized_{false};
  std::array<std::atomic<MemoryPool*>, kMaxDevices> pools_{};
};

}  // namespace nxl::device
