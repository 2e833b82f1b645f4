// SPDX-License-Identifier: Apache-2.0
// The regions of this agent, and the check that runs stay inside the regions they name.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/api.h"
#include "core/status.h"
#include "kv/plan.h"
#include "kv/provider.h"
#include "kv/region.h"

namespace nxl::kv {

// Thread safe.
class NXL_API RegionTable {
 public:
  using Exporter = UniqueFd (*)(const RegionDescription&, uint64_t* offset);

  RegionTable(uint32_t max_regions, Exporter exporter) : max_regions_(max_regions), exporter_(exporter) {}

  // Throws Error(kInvalid) for an empty range, kUnavailable at the limit.
  std::shared_ptr<const Region> add(const RegionDescription& description);
  Status remove(uint32_t index);  // NRT_RESOURCE while pinned, NRT_INVALID_HANDLE when there is none
  std::shared_ptr<const RegionMap> snapshot() const;

  bool pin(std::span<const uint32_t> regions);  // all or none; false when one has gone
  void unpin(std::span<const uint32_t> regions);

 private:
  const uint32_t max_regions_;
  const Exporter exporter_;
  mutable std::mutex mutex_;
  std::shared_ptr<const RegionMap> regions_ = std::make_shared<RegionMap>();
  std::unordered_map<uint32_t, uint64_t> pins_;
  uint32_t next_index_ = 0;
};

// Bytes that `runs` move. Throws Error(kInvalid) that names the run, the region and the limit when a run is empty,
// leaves a region, writes a byte twice, or goes against a region's direction. Fills `local_used` and `remote_used` with
// the regions named, each once.
NXL_API uint64_t check_runs(std::span<const Run> runs, const RegionMap& local, const RemoteRegionMap& remote,
                            bool remote_is_source, const std::string& peer, std::vector<uint32_t>& local_used,
                            std::vector<uint32_t>& remote_used);

}  // namespace nxl::kv
