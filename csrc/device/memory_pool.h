// SPDX-License-Identifier: Apache-2.0
// The cache of one device's memory: segments from NRT, cut into blocks, best fit, neighbours merged when freed.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/segment.h"

namespace nxl::device {

class MemoryPool;

// A piece of a segment. Made and deleted by its pool, which lives as long as the process; `prev` and `next` are the
// neighbours in the segment.
struct Block {
  MemoryPool* pool = nullptr;
  Segment* segment = nullptr;
  size_t offset = 0;
  size_t size = 0;       // a multiple of kAlignment
  size_t requested = 0;  // what the caller asked for
  bool allocated = false;
  Block* prev = nullptr;
  Block* next = nullptr;
  // The handle for the whole of `requested`, the window asked for most often. Cleared when the block is freed.
  std::atomic<nrt_tensor_t*> whole{nullptr};

  std::byte* address() const { return segment->base() + offset; }
};

// Thread safe. Never takes the GIL. While it holds its lock it neither waits, asks a queue nor frees NRT
// tensors: each of those may release what a finished copy kept alive, and so come back here to free.
class MemoryPool {
 public:
  static constexpr size_t kAlignment = 512;
  static constexpr size_t kSmallLimit = size_t{1} << 20;  // up to here from small segments
  static constexpr size_t kSmallSegment = size_t{2} << 20;
  static constexpr size_t kMediumLimit = size_t{10} << 20;  // up to here from medium segments
  static constexpr size_t kMediumSegment = size_t{20} << 20;
  static constexpr size_t kLargeRounding = size_t{2} << 20;  // segments for one block are a multiple of this

  explicit MemoryPool(c10::DeviceIndex device) : device_(device) {}

  // A block of at least `bytes` > 0. When the core is full, returns the cached segments (after the queued work is done)
  // and tries again; then throws nxl::Error(kOutOfMemory) with used, asked and limit.
  Block* allocate(size_t bytes);
  void free(Block* block) noexcept;

  // Gives every segment without a live block back to NRT, after the queued work is done.
  void empty_cache();

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();
  size_t largest_free_block();

 private:
  struct BySizeThenAddress {
    using is_transparent = void;  // a size alone finds the smallest block that fits
    bool operator()(const Block* a, size_t size) const { return a->size < size; }
    bool operator()(size_t size, const Block* b) const { return size < b->size; }
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->address() < b->address();
    }
  };
  using FreeList = std::set<Block*, BySizeThenAddress>;
  struct Retired {
    uint64_t ticket;
    std::vector<nrt::Tensor> slices;
  };

  static size_t segment_size_for(size_t size);
  FreeList& free_list(bool small) { return small ? free_small_ : free_large_; }
  Block* take_free(size_t size);
  Block* add_segment_or_null(size_t segment_size, bool small);  // null when the core is full
  Block* cut(Block* block, size_t size, size_t requested);
  void absorb_next(Block* block);
  void release_cached();
  std::vector<std::unique_ptr<Segment>> take_free_segments();
  void release_retired();
  [[noreturn]] void throw_out_of_memory(size_t bytes);
  void count_split_piece(const Block& block, bool added);

  const c10::DeviceIndex device_;
  std::atomic<bool> has_retired_{false};  // a hint, so that the common path asks nothing
  std::mutex mutex_;                      // guards everything below
  FreeList free_small_;
  FreeList free_large_;
  std::unordered_map<Segment*, std::unique_ptr<Segment>> segments_;
  std::vector<Retired> retired_;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

}  // namespace nxl::device
