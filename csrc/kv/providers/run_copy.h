// SPDX-License-Identifier: Apache-2.0
// Moves runs between two memories that are both mapped here: what `shm` and `loopback` share, with the look-up of
// regions and the common outcomes of every channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kv/plan.h"
#include "kv/provider.h"
#include "kv/region.h"

namespace nxl::kv {

// Up to this much in all, a transfer is left in the caches for whoever asked for it.
inline constexpr uint64_t kCachedBytes = 64 << 10;

// The bytes of region `index`, empty when the table has none.
std::span<std::byte> region_bytes(const RegionMap& regions, uint32_t index);

// Why a copy may not go on; nullopt while it may.
std::optional<CopyResult> interruption(const Progress& progress, Deadline deadline, size_t run);

// For a run that does not lie inside the two regions, or names one that is not there.
CopyResult out_of_bounds(const char* provider, std::span<const Run> runs, size_t run, uint64_t source_bytes,
                         uint64_t target_bytes);

// Where the peer's regions are mapped in this process.
class MappedSource {
 public:
  virtual std::span<const std::byte> source(uint32_t index) const = 0;  // empty: none

 protected:
  ~MappedSource() = default;
};

// Every run is checked against both memories again before it is touched. Stops at the next chunk when told to.
CopyResult copy_mapped(const char* provider, std::span<const Run> runs, const MappedSource& sources,
                       const RegionMap& targets, uint64_t chunk_bytes, Progress& progress, Deadline deadline);

}  // namespace nxl::kv
