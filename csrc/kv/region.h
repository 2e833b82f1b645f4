// SPDX-License-Identifier: Apache-2.0
// Memory that an agent has registered, and the same memory as a peer sees it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/api.h"
#include "core/unique_handle.h"

namespace nxl::kv {

// 128 random bits: whoever names a region or a lease must know its key.
using Key = std::array<uint64_t, 2>;

// What the caller registers. The memory stays the caller's and must stay mapped until deregister() returned OK.
struct RegionDescription {
  void* address = nullptr;
  uint64_t bytes = 0;
  std::string name;  // for messages and metrics
  int core = -1;     // neuron core of device memory; -1: host memory
  // A memfd of the caller's that holds exactly this memory, to be exported. -1: the agent asks the runtime for device
  // memory, and host memory is reached by cma or tcp.
  int fd = -1;
  uint64_t fd_offset = 0;
  bool readable = true;  // peers may READ from it
  bool writable = true;  // peers may ask us to read into it (their WRITE)
};

// One registered region of this process. Immutable once made, but for the count.
struct Region {
  uint32_t index = 0;  // in the agent's table, never used twice
  RegionDescription description;
  Key key{};
  UniqueFd exported;  // read-only, covers exactly this memory; empty when the memory shares a file with anything else
  uint64_t exported_offset = 0;
  mutable std::atomic<uint32_t> held{0};  // RegionHold objects: deregister is BUSY while there are any
};

// Keeps a region registered while a peer is given its bytes. Its owner may have taken it away until then: look it up
// once more after the hold was made, and it stays.
class RegionHold {
 public:
  explicit RegionHold(std::shared_ptr<const Region> region) : region_(std::move(region)) { region_->held.fetch_add(1); }
  RegionHold(RegionHold&& other) noexcept = default;
  RegionHold& operator=(RegionHold&& other) = delete;
  ~RegionHold() {
    if (region_) region_->held.fetch_sub(1);
  }
  const Region& operator*() const { return *region_; }
  const Region* operator->() const { return region_.get(); }

 private:
  std::shared_ptr<const Region> region_;
};

// A peer's region, as its metadata describes it. Immutable; a new incarnation of the peer has new objects.
struct RemoteRegion {
  uint32_t index = 0;
  Key key{};
  uint64_t address = 0;  // in the peer's address space (cma)
  uint64_t bytes = 0;
  std::string name;
  int core = -1;
  bool readable = false;
  bool writable = false;
  std::shared_ptr<const UniqueFd> fd;  // received over the Unix socket (shm); null when it was not exported
  uint64_t fd_offset = 0;
};

// Snapshots by region index. They are replaced, never changed, so a copy thread keeps the one it began with.
using RegionMap = std::map<uint32_t, std::shared_ptr<const Region>>;
using RemoteRegionMap = std::map<uint32_t, std::shared_ptr<const RemoteRegion>>;

}  // namespace nxl::kv
