// SPDX-License-Identifier: Apache-2.0
// MemoryPool: best fit in cached segments, then NRT, then give back what is cached, then out of memory.
#include "device/memory_pool.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "device/address_map.h"
#include "device/context.h"

namespace nxl::device {
namespace {

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

void change(StatArray& stat, bool small, size_t amount, bool up) {
  const auto pool = static_cast<size_t>(small ? StatType::SMALL_POOL : StatType::LARGE_POOL);
  for (const size_t index : {static_cast<size_t>(StatType::AGGREGATE), pool}) {
    up ? stat[index].increase(amount) : stat[index].decrease(amount);
  }
}

std::array<StatArray*, 9> all_stats(c10::CachingDeviceAllocator::DeviceStats& stats) {
  return {&stats.allocation,      &stats.segment,        &stats.active,       &stats.inactive_split,
          &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes,
          &stats.requested_bytes};
}

// Bytes as a reader of an error wants them.
std::string mebibytes(size_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return out.str();
}

}  // namespace

size_t MemoryPool::segment_size_for(size_t size) {
  if (size <= kSmallLimit) return kSmallSegment;
  if (size <= kMediumLimit) return kMediumSegment;
  return round_up(size, kLargeRounding);
}

Block* MemoryPool::allocate(size_t bytes) {
  NXL_CHECK(bytes <= SIZE_MAX / 2, kOutOfMemory, "neuron:", static_cast<int>(device_), ": asked for ", bytes, " bytes");
  const size_t size = round_up(bytes, kAlignment);
  const bool small = size <= kSmallLimit;
  if (has_retired_.load(std::memory_order_relaxed)) release_retired();
  {
    const std::lock_guard lock(mutex_);
    Block* block = take_free(size);
    if (block == nullptr) block = add_segment_or_null(segment_size_for(size), small);
    if (block != nullptr) return cut(block, size, bytes);
  }
  release_cached();
  const std::lock_guard lock(mutex_);
  ++stats_.num_alloc_retries;
  Block* block = take_free(size);  // another thread may have freed meanwhile
  if (block == nullptr) block = add_segment_or_null(segment_size_for(size), small);
  if (block == nullptr) block = add_segment_or_null(size, small);  // the rest of the core may be just enough
  if (block == nullptr) {
    ++stats_.num_ooms;
    throw_out_of_memory(bytes);
  }
  return cut(block, size, bytes);
}

void MemoryPool::throw_out_of_memory(size_t bytes) {
  const auto [used, limit] = runtime()->memory(device_);
  const auto all = static_cast<size_t>(StatType::AGGREGATE);
  throw_error(
      ErrorKind::kOutOfMemory,
      detail::concat(
          "neuron:", static_cast<int>(device_), " out of memory: tried to allocate ", mebibytes(bytes), " (", bytes,
          " bytes); ", mebibytes(used), " of ", mebibytes(limit), " are in use on the core, ",
          mebibytes(static_cast<size_t>(stats_.allocated_bytes[all].current)), " by live tensors and ",
          mebibytes(static_cast<size_t>(stats_.reserved_bytes[all].current - stats_.allocated_bytes[all].current)),
          " reserved by the allocator but unused. Free tensors, use a smaller batch or shorter sequences, "
          "or spread the model over more cores."));
}

Block* MemoryPool::take_free(size_t size) {
  FreeList& list = free_list(size <= kSmallLimit);
  const auto it = list.lower_bound(size);
  if (it == list.end()) return nullptr;
  Block* block = *it;
  list.erase(it);
  count_split_piece(*block, false);
  return block;
}

Block* MemoryPool::add_segment_or_null(size_t segment_size, bool small) {
  std::unique_ptr<Segment> segment;
  try {
    segment = std::make_unique<Segment>(runtime(), device_, segment_size, small);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kOutOfMemory) return nullptr;
    throw;
  }
  AddressMap::get().add(segment.get());
  auto* block = new Block{.pool = this, .segment = segment.get(), .size = segment_size};
  segments_.emplace(segment.get(), std::move(segment));
  ++stats_.num_device_alloc;
  change(stats_.segment, small, 1, true);
  change(stats_.reserved_bytes, small, segment_size, true);
  return block;
}

// Marks `block` (in no list) as taken; what is left of it becomes a free block if it is worth keeping apart.
Block* MemoryPool::cut(Block* block, size_t size, size_t requested) {
  const bool small = block->segment->small();
  const size_t rest = block->size - size;
  if (rest >= (small ? kAlignment : kSmallLimit + 1)) {
    auto* remainder = new Block{.pool = this,
                                .segment = block->segment,
                                .offset = block->offset + size,
                                .size = rest,
                                .prev = block,
                                .next = block->next};
    if (block->next != nullptr) block->next->prev = remainder;
    block->next = remainder;
    block->size = size;
    free_list(small).insert(remainder);
    count_split_piece(*remainder, true);
  }
  block->allocated = true;
  block->requested = requested;
  change(stats_.allocation, small, 1, true);
  change(stats_.active, small, 1, true);
  change(stats_.allocated_bytes, small, block->size, true);
  change(stats_.active_bytes, small, block->size, true);
  change(stats_.requested_bytes, small, requested, true);
  return block;
}

void MemoryPool::free(Block* block) noexcept {
  // A forked child has copies of the parent's blocks and of a lock that may be held for ever: it only forgets them.
  if (in_bad_fork()) return;
  const std::lock_guard lock(mutex_);
  const bool small = block->segment->small();
  change(stats_.allocation, small, 1, false);
  change(stats_.active, small, 1, false);
  change(stats_.allocated_bytes, small, block->size, false);
  change(stats_.active_bytes, small, block->size, false);
  change(stats_.requested_bytes, small, block->requested, false);
  if (auto slices = block->segment->drop_slices(block->offset, block->size); !slices.empty()) {
    const loader::CoreQueue* queue = queue_if_used(device_);
    retired_.push_back({queue != nullptr ? queue->submitted() : 0, std::move(slices)});
    has_retired_.store(true, std::memory_order_relaxed);
  }
  block->allocated = false;
  block->requested = 0;
  block->whole.store(nullptr, std::memory_order_relaxed);
  if (block->next != nullptr && !block->next->allocated) absorb_next(block);
  if (block->prev != nullptr && !block->prev->allocated) {
    block = block->prev;
    free_list(small).erase(block);
    count_split_piece(*block, false);
    absorb_next(block);
  }
  free_list(small).insert(block);
  count_split_piece(*block, true);
}

// Takes the free or just freed block after `block` into it. `block` is in no list.
void MemoryPool::absorb_next(Block* block) {
  Block* gone = block->next;
  if (free_list(gone->segment->small()).erase(gone) != 0) count_split_piece(*gone, false);
  block->size += gone->size;
  block->next = gone->next;
  if (gone->next != nullptr) gone->next->prev = block;
  delete gone;
}

// A free block that shares its segment cannot go back to NRT: statistics call it an inactive split.
void MemoryPool::count_split_piece(const Block& block, bool added) {
  if (block.prev == nullptr && block.next == nullptr) return;
  change(stats_.inactive_split, block.segment->small(), 1, added);
  change(stats_.inactive_split_bytes, block.segment->small(), block.size, added);
}

void MemoryPool::empty_cache() { release_cached(); }

void MemoryPool::release_cached() {
  synchronize(device_);
  release_retired();
  std::vector<std::unique_ptr<Segment>> unused;  // freed after the lock is released
  const std::lock_guard lock(mutex_);
  ++stats_.num_sync_all_streams;
  unused = take_free_segments();
}

std::vector<std::unique_ptr<Segment>> MemoryPool::take_free_segments() {
  std::vector<std::unique_ptr<Segment>> unused;
  for (FreeList* list : {&free_small_, &free_large_}) {
    for (auto it = list->begin(); it != list->end();) {
      Block* block = *it;
      if (block->prev != nullptr || block->next != nullptr) {
        ++it;
        continue;
      }
      it = list->erase(it);
      Segment* segment = block->segment;
      AddressMap::get().remove(segment);
      ++stats_.num_device_free;
      change(stats_.segment, segment->small(), 1, false);
      change(stats_.reserved_bytes, segment->small(), segment->size(), false);
      unused.push_back(std::move(segments_.extract(segment).mapped()));
      delete block;
    }
  }
  return unused;
}

void MemoryPool::release_retired() {
  std::vector<Retired> retired;
  {
    const std::lock_guard lock(mutex_);
    retired.swap(retired_);
    has_retired_.store(false, std::memory_order_relaxed);
  }
  loader::CoreQueue* queue = queue_if_used(device_);
  std::erase_if(retired, [&](const Retired& slices) { return queue == nullptr || queue->is_complete(slices.ticket); });
  if (retired.empty()) return;
  const std::lock_guard lock(mutex_);
  std::move(retired.begin(), retired.end(), std::back_inserter(retired_));
  has_retired_.store(true, std::memory_order_relaxed);
}

c10::CachingDeviceAllocator::DeviceStats MemoryPool::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

size_t MemoryPool::largest_free_block() {
  const std::lock_guard lock(mutex_);
  size_t largest = 0;
  for (const FreeList* list : {&free_small_, &free_large_}) {
    if (!list->empty()) largest = std::max(largest, (*list->rbegin())->size);
  }
  return largest;
}

void MemoryPool::reset_accumulated_stats() {
  const std::lock_guard lock(mutex_);
  for (StatArray* stat : all_stats(stats_)) {
    for (auto& entry : *stat) entry.reset_accumulated();
  }
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
}

void MemoryPool::reset_peak_stats() {
  const std::lock_guard lock(mutex_);
  for (StatArray* stat : all_stats(stats_)) {
    for (auto& entry : *stat) entry.reset_peak();
  }
}

}  // namespace nxl::device
