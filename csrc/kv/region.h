// SPDX-License-Identifier: Apache-2.0
// Memory that an agent has registered, and the same memory as a peer sees it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

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

// One registered region of this process. Immutable once made.
struct Region {
  uint32_t index = 0;  // in the agent's table, never used twice
  RegionDescription description;
  Key key{};
  UniqueFd exported;  // read-only, covers exactly this memory; empty when the memory shares a file with anything else
  uint64_t exported_offset = 0;
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
