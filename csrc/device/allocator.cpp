// SPDX-License-Identifier: Apache-2.0
// NeuronAllocator: translation between c10's allocator interface and the pools.
#include "device/allocator.h"

#include <c10/core/Stream.h>

#include <cstring>
#include <utility>
#include <vector>

#include "device/error_edge.h"
#include "device/memory.h"

namespace nxl::device {
namespace {

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  block->pool->free(block);
}

}  // namespace

NeuronAllocator& allocator() {
  static NeuronAllocator* const instance = new NeuronAllocator();
  return *instance;
}

MemoryPool& NeuronAllocator::pool(c10::DeviceIndex device) {
  if (in_bad_fork()) runtime();  // throws: the pool's lock may be held for ever in this child
  check_device(device);
  auto& slot = pools_[device];
  MemoryPool* pool = slot.load(std::memory_order_acquire);
  if (pool == nullptr) {
    auto made = std::make_unique<MemoryPool>(device);
    if (slot.compare_exchange_strong(pool, made.get(), std::memory_order_acq_rel)) pool = made.release();
  }
  return *pool;
}

c10::DataPtr NeuronAllocator::allocate(size_t bytes) { return allocate_on(get_current_device(), bytes); }

c10::DataPtr NeuronAllocator::allocate_on(c10::DeviceIndex device, size_t bytes) {
  const c10::Device where(kDeviceType, device);
  return at_torch_edge([&]() -> c10::DataPtr {
    if (!runtime_is_open()) runtime();  // makes it, or refuses: a cached block must not hide that it is closed
    if (bytes == 0) {
      check_device(device);
      return {nullptr, where};
    }
    Block* block = pool(device).allocate(bytes);
    initialized_.store(true, std::memory_order_relaxed);
    return {block->address(), block, &free_block, where};
  });
}

Block* NeuronAllocator::block_of(const c10::DataPtr& pointer) noexcept {
  return pointer.get_deleter() == &free_block ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

void NeuronAllocator::copy_data(void* target, const void* source, size_t bytes) const {
  if (bytes == 0) return;
  const Location from = locate(source);
  const Location to = locate(target);
  TORCH_CHECK(from.segment != nullptr && to.segment != nullptr,
              "copy_data between addresses that are not neuron memory");
  wait_for_host_access(from.device);
  wait_for_host_access(to.device);
  if (void* address = host_address(target); address != nullptr) {
    std::memcpy(address, host_address(source), bytes);
    return;
  }
  // No host address: through the host, which is also the only way between two cores.
  at_torch_edge([&] {
    std::vector<std::byte> staging(bytes);
    auto& reader = loader::CoreQueue::of(from.device);
    synchronize(from.device, reader.read(staging.data(), from.segment, from.offset, bytes, nullptr));
    auto& writer = loader::CoreQueue::of(to.device);
    synchronize(to.device, writer.write(to.segment, staging.data(), to.offset, bytes, nullptr));
  });
}

void NeuronAllocator::emptyCache(c10::MempoolId_t mempool_id) {
  TORCH_CHECK_NOT_IMPLEMENTED(mempool_id == c10::MempoolId_t(0, 0), "the neuron device has no private memory pools");
  for (int device = 0; device < kMaxDevices; ++device) {
    if (MemoryPool* pool = pools_[device].load(std::memory_order_acquire)) {
      at_torch_edge([&] { pool->empty_cache(); });
    }
  }
}

void NeuronAllocator::empty_cache(c10::DeviceIndex device) {
  at_torch_edge([&] { pool(device).empty_cache(); });
}

size_t NeuronAllocator::largest_free_block(c10::DeviceIndex device) {
  return at_torch_edge([&] { return pool(device).largest_free_block(); });
}

void NeuronAllocator::recordStream(const c10::DataPtr& pointer, c10::Stream stream) {
  TORCH_CHECK_VALUE(stream.device_type() == kDeviceType, "record_stream of a neuron tensor with a stream of ",
                    stream.device());
}

c10::CachingDeviceAllocator::DeviceStats NeuronAllocator::getDeviceStats(c10::DeviceIndex device) {
  return at_torch_edge([&] { return pool(device).stats(); });
}

void NeuronAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  at_torch_edge([&] { pool(device).reset_accumulated_stats(); });
}

void NeuronAllocator::resetPeakStats(c10::DeviceIndex device) {
  at_torch_edge([&] { pool(device).reset_peak_stats(); });
}

std::pair<size_t, size_t> NeuronAllocator::getMemoryInfo(c10::DeviceIndex device) {
  return at_torch_edge([&]() -> std::pair<size_t, size_t> {
    check_device(device);
    const auto [used, limit] = runtime()->memory(device);
    return {limit > used ? limit - used : 0, limit};
  });
}

REGISTER_ALLOCATOR(kDeviceType, &allocator())

}  // namespace nxl::device
