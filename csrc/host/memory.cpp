// SPDX-License-Identifier: Apache-2.0
// Segments, gaps and accounting of device memory.
#include "host/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "core/checked.h"
#include "host/environment.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

uint64_t round_up(uint64_t bytes, uint64_t unit) {
  const auto padded = checked_add(bytes, unit - 1);
  if (!padded) refuse(NRT_RESOURCE, "a size of ", bytes, " bytes is not representable");
  return *padded / unit * unit;
}

}  // namespace

Allocation::~Allocation() { memory_->release(address_); }

Reservation::~Reservation() {
  std::lock_guard lock(memory_->mutex_);
  memory_->used_ -= bytes_;
}

CoreMemory::~CoreMemory() {
  for (auto& [base, segment] : segments_) release_segment(segment);
}

void CoreMemory::charge(uint64_t bytes) {
  if (bytes > limit_ - used_) {
    refuse(NRT_RESOURCE, "core ", core_, " is out of device memory: ", used_, " bytes used, ", bytes, " asked, limit ",
           limit_, " (NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB sets the limit)");
  }
  used_ += bytes;
}

CoreMemory::Segment& CoreMemory::add_segment(uint64_t bytes, bool shared) {
  Segment segment;
  segment.fd = memfd_create("neuron-host", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.fd < 0) refuse(NRT_RESOURCE, "memfd_create: ", std::strerror(errno));
  void* base = MAP_FAILED;
  if (ftruncate(segment.fd, static_cast<off_t>(bytes)) == 0) {
    // An importer of the descriptor must not be able to cut the file under our mapping.
    fcntl(segment.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0);
  }
  if (base == MAP_FAILED) {
    const int error = errno;
    ::close(segment.fd);
    refuse(NRT_RESOURCE, "mapping a device memory segment of ", bytes, " bytes: ", std::strerror(error));
  }
  if (!shared) madvise(base, bytes, MADV_HUGEPAGE);  // advice only: kernels without shmem huge pages say no
  segment.base = static_cast<std::byte*>(base);
  segment.bytes = bytes;
  segment.shared = shared;
  segment.free.emplace(0, bytes);
  return segments_.emplace(reinterpret_cast<uint64_t>(base), std::move(segment)).first->second;
}

std::byte* CoreMemory::take(Segment& segment, uint64_t bytes) {
  for (auto gap = segment.free.begin(); gap != segment.free.end(); ++gap) {
    if (gap->second < bytes) continue;
    const uint64_t offset = gap->first;
    const uint64_t rest = gap->second - bytes;
    segment.live.emplace(offset, bytes);
    segment.free.erase(gap);
    if (rest != 0) segment.free.emplace(offset + bytes, rest);
    return segment.base + offset;
  }
  return nullptr;
}

std::shared_ptr<Allocation> CoreMemory::allocate(uint64_t bytes) {
  const bool own = bytes >= kOwnSegmentBytes;
  const uint64_t unit = own ? static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : kAlignment;
  const uint64_t rounded = round_up(bytes == 0 ? 1 : bytes, unit);
  std::lock_guard lock(mutex_);
  charge(rounded);
  std::byte* address = nullptr;
  try {
    if (own) {
      address = take(add_segment(rounded, false), rounded);
    } else {
      for (auto it = segments_.begin(); it != segments_.end() && !address; ++it) {
        if (it->second.shared) address = take(it->second, rounded);
      }
      if (!address) address = take(add_segment(kSharedSegmentBytes, true), rounded);
    }
  } catch (...) {
    used_ -= rounded;
    throw;
  }
  return std::make_shared<Allocation>(shared_from_this(), address, rounded);
}

std::shared_ptr<Reservation> CoreMemory::reserve(uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    charge(bytes);
  }
  return std::make_shared<Reservation>(shared_from_this(), bytes);
}

uint64_t CoreMemory::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}

void CoreMemory::release(std::byte* address) noexcept {
  std::lock_guard lock(mutex_);
  auto found = --segments_.upper_bound(reinterpret_cast<uint64_t>(address));
  Segment& segment = found->second;
  const auto live = segment.live.find(static_cast<uint64_t>(address - segment.base));
  uint64_t offset = live->first;
  uint64_t bytes = live->second;
  used_ -= bytes;
  segment.live.erase(live);
  if (segment.live.empty()) {
    release_segment(segment);
    segments_.erase(found);
    return;
  }
  auto next = segment.free.lower_bound(offset);
  if (next != segment.free.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = segment.free.erase(next);
  }
  if (next != segment.free.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  segment.free.emplace(offset, bytes);
}

void CoreMemory::release_segment(Segment& segment) noexcept {
  munmap(segment.base, segment.bytes);
  ::close(segment.fd);
}

int CoreMemory::export_range(uint64_t va, uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  auto found = segments_.upper_bound(va);
  if (found == segments_.begin()) return -1;
  const Segment& segment = std::prev(found)->second;
  const uint64_t offset = va - reinterpret_cast<uint64_t>(segment.base);
  auto live = segment.live.upper_bound(offset);
  if (live == segment.live.begin()) return -1;
  --live;
  if (bytes == 0 || !range_within(offset - live->first, bytes, live->second)) return -1;
  // Opened again rather than duplicated: a duplicate would share its file offset with every other one.
  const int fd = ::open(("/proc/self/fd/" + std::to_string(segment.fd)).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) refuse(NRT_RESOURCE, "exporting device memory of core ", core_, ": ", std::strerror(errno));
  lseek(fd, static_cast<off_t>(offset), SEEK_SET);
  return fd;
}

uint64_t physical_memory() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t limit = 0;  // the file may say "max", which reads as no number
    if (std::ifstream(path) >> limit && limit > 0 && limit < bytes) bytes = limit;
  }
  return bytes;
}

uint64_t memory_limit_per_core(int cores) {
  constexpr int64_t kMaxMegabytes = int64_t{1} << 40;
  if (const auto megabytes = environment_integer("NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB", 1, kMaxMegabytes)) {
    return static_cast<uint64_t>(*megabytes) << 20;
  }
  return physical_memory() / 5 * 4 / static_cast<uint64_t>(cores);
}

}  // namespace nxl::host
