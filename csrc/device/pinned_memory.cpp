// SPDX-License-Identifier: Apache-2.0
// PinnedAllocator: size classes over mappings or NRT host tensors.
#include "device/pinned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "device/context.h"
#include "device/error_edge.h"

namespace nxl::device {
namespace {

constexpr size_t kPage = 4096;

size_t size_class_bytes(size_t bytes) { return std::max(kPage, std::bit_ceil(bytes)); }
size_t class_of(size_t size) { return static_cast<size_t>(std::countr_zero(size)); }

}  // namespace

PinnedBuffer::PinnedBuffer(size_t bytes) : size_(bytes) {
  const std::shared_ptr<nrt::Runtime> open = runtime();
  if (open->is_host()) {
    void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NXL_CHECK(mapping != MAP_FAILED, kOutOfMemory, "cannot map ", bytes, " bytes of pinned host memory");
    address_ = static_cast<std::byte*>(mapping);
  } else {
    tensor_ = nrt::Tensor::allocate_host(open, bytes);
    address_ = static_cast<std::byte*>(tensor_.address());
    NXL_CHECK(address_ != nullptr, kUnavailable, "the runtime gave no address for ", bytes, " bytes of pinned memory");
  }
}

PinnedBuffer::~PinnedBuffer() {
  if (!tensor_) munmap(address_, size_);
}

PinnedAllocator& pinned_allocator() {
  static PinnedAllocator* const instance = new PinnedAllocator();  // leaked: tensors may outlive main()
  return *instance;
}

at::DataPtr PinnedAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, at::kCPU};
  if (in_bad_fork()) at_torch_edge([] { runtime(); });  // throws: a lock may be held for ever in this child
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= SIZE_MAX / 4, "cannot pin ", bytes, " bytes");
  const size_t size = size_class_bytes(bytes);
  PinnedBuffer* buffer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& list = free_[class_of(size)];
    if (!list.empty()) {
      buffer = list.back();
      list.pop_back();
    }
  }
  const bool made = buffer == nullptr;
  if (made) {
    auto fresh = at_torch_edge([&] { return std::make_unique<PinnedBuffer>(size); });
    buffer = fresh.get();
    const std::unique_lock lock(table_mutex_);
    by_address_[fresh->address()] = std::move(fresh);
  }
  const std::lock_guard lock(mutex_);
  stats_.active_requests.increase(1);
  stats_.active_bytes.increase(size);
  if (made) {
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(size);
    ++stats_.num_host_alloc;
    ++stats_.bucket_allocation[class_of(size)];
  }
  return {buffer->address(), buffer, &PinnedAllocator::release, at::kCPU};
}

void PinnedAllocator::release(void* context) { pinned_allocator().take_back(static_cast<PinnedBuffer*>(context)); }

void PinnedAllocator::take_back(PinnedBuffer* buffer) noexcept {
  if (in_bad_fork()) return;  // the lock may be held for ever in the child
  const std::lock_guard lock(mutex_);
  stats_.active_requests.decrease(1);
  stats_.active_bytes.decrease(buffer->size());
  free_[class_of(buffer->size())].push_back(buffer);
}

void PinnedAllocator::copy_data(void* target, const void* source, size_t bytes) const {
  std::memcpy(target, source, bytes);
}

bool PinnedAllocator::record_event(void* pointer, void* context, c10::Stream stream) { return owns(pointer); }

void PinnedAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  const std::unique_lock table_lock(table_mutex_);
  for (auto& list : free_) {
    for (PinnedBuffer* buffer : list) {
      stats_.allocations.decrease(1);
      stats_.allocated_bytes.decrease(buffer->size());
      ++stats_.num_host_free;
      by_address_.erase(buffer->address());
    }
    list.clear();
  }
}

at::HostStats PinnedAllocator::get_stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void PinnedAllocator::reset_accumulated_stats() {
  const std::lock_guard lock(mutex_);
  for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes}) {
    stat->reset_accumulated();
  }
  stats_.num_host_alloc = 0;
  stats_.num_host_free = 0;
}

void PinnedAllocator::reset_peak_stats() {
  const std::lock_guard lock(mutex_);
  for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes}) {
    stat->reset_peak();
  }
}

bool PinnedAllocator::owns(const void* pointer) const noexcept {
  if (in_bad_fork()) return false;  // nothing is registered with a device there, and the lock may be held for ever
  const auto* byte = static_cast<const std::byte*>(pointer);
  const std::shared_lock lock(table_mutex_);
  auto it = by_address_.upper_bound(byte);
  if (it == by_address_.begin()) return false;
  --it;
  return byte < it->first + it->second->size();
}

REGISTER_HOST_ALLOCATOR(kDeviceType, &pinned_allocator())

}  // namespace nxl::device
