// SPDX-License-Identifier: Apache-2.0
// Device memory of one core: slices of memfd-backed segments, with a limit and accounting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace nxl::host {

class CoreMemory;

// A slice of a segment; given back when the last owner lets go, also after nrt_close.
class Allocation {
 public:
  Allocation(std::shared_ptr<CoreMemory> memory, std::byte* address, uint64_t bytes)
      : memory_(std::move(memory)), address_(address), bytes_(bytes) {}
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  std::byte* address() const { return address_; }
  uint64_t bytes() const { return bytes_; }  // rounded up, as accounted

 private:
  std::shared_ptr<CoreMemory> memory_;
  std::byte* address_;
  uint64_t bytes_;
};

// Bytes that count against the limit but live elsewhere (a program's constants).
class Reservation {
 public:
  Reservation(std::shared_ptr<CoreMemory> memory, uint64_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

 private:
  std::shared_ptr<CoreMemory> memory_;
  uint64_t bytes_;
};

// Thread safe. Allocations of at least kOwnSegmentBytes get a memfd of their own, starting at offset 0 in it.
class CoreMemory : public std::enable_shared_from_this<CoreMemory> {
 public:
  static constexpr uint64_t kAlignment = 256;  // addresses and sizes are multiples of it
  static constexpr uint64_t kOwnSegmentBytes = 16ull << 20;
  static constexpr uint64_t kSharedSegmentBytes = 64ull << 20;  // sparse: pages exist once they are touched

  CoreMemory(int core, uint64_t limit) : core_(core), limit_(limit) {}
  ~CoreMemory();
  CoreMemory(const CoreMemory&) = delete;
  CoreMemory& operator=(const CoreMemory&) = delete;

  // Both throw RESOURCE with used, asked and limit. Zero bytes take one unit of kAlignment.
  std::shared_ptr<Allocation> allocate(uint64_t bytes);
  std::shared_ptr<Reservation> reserve(uint64_t bytes);

  uint64_t used() const;
  uint64_t limit() const { return limit_; }

  // A new descriptor of the memfd behind [va, va + bytes), close-on-exec, its file offset at va's place in the file;
  // the file holds nothing but this allocation exactly when the allocation has a segment of its own. -1 when the range
  // is not inside one live allocation of this core.
  int export_range(uint64_t va, uint64_t bytes) const;

 private:
  friend class Allocation;
  friend class Reservation;
  struct Segment {
    int fd = -1;
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    bool shared = false;
    std::map<uint64_t, uint64_t> free;  // offset to bytes, coalesced
    std::map<uint64_t, uint64_t> live;
  };

  void charge(uint64_t bytes);  // with mutex_ held
  Segment& add_segment(uint64_t bytes, bool shared);
  static std::byte* take(Segment& segment, uint64_t bytes);  // nullptr when no gap is large enough
  void release(std::byte* address) noexcept;
  void release_segment(Segment& segment) noexcept;

  const int core_;
  const uint64_t limit_;
  mutable std::mutex mutex_;
  uint64_t used_ = 0;
  std::map<uint64_t, Segment> segments_;  // by base address
};

// min(physical memory, cgroup limit) in bytes.
uint64_t physical_memory();

// The limit of each of `cores` cores: NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB, else an equal share of four fifths of the
// physical memory. Throws INVALID for a value that is not a positive integer.
uint64_t memory_limit_per_core(int cores);

}  // namespace nxl::host
