// SPDX-License-Identifier: Apache-2.0
// Registration, pins, and bounds of runs.
#include "kv/region_table.h"

#include <algorithm>

#include "core/checked.h"
#include "core/error.h"
#include "kv/auth.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {
namespace {

// Remembers the region that the run before named: neighbours mostly name the same.
template <typename Map>
class Lookup {
 public:
  explicit Lookup(const Map& map, std::vector<uint32_t>& used) : map_(map), used_(used) {}

  const typename Map::mapped_type::element_type* operator()(uint32_t index) {
    if (region_ != nullptr && region_->index == index) return region_;
    const auto it = map_.find(index);
    if (it == map_.end()) return nullptr;
    region_ = it->second.get();
    if (std::find(used_.begin(), used_.end(), index) == used_.end()) used_.push_back(index);
    return region_;
  }

 private:
  const Map& map_;
  std::vector<uint32_t>& used_;
  const typename Map::mapped_type::element_type* region_ = nullptr;
};

bool inside(uint64_t offset, uint64_t bytes, uint64_t stride, uint32_t count, uint64_t limit) {
  const auto span = checked_mul(uint64_t{count} - 1, stride);
  if (!span) return false;
  const auto size = checked_add(*span, bytes);
  return size && range_within(offset, *size, limit);
}

[[gnu::cold, gnu::noinline, noreturn]] void refuse(size_t index, const Run& run, const std::string& what) {
  throw_error(ErrorKind::kInvalid, detail::concat("run ", index, " (", run.count, " x ", run.bytes, " bytes, region ",
                                                  run.source_region, "+", run.source_offset, " to region ",
                                                  run.target_region, "+", run.target_offset, "): ", what));
}

}  // namespace

std::shared_ptr<const Region> RegionTable::add(const RegionDescription& description) {
  NXL_CHECK(description.address != nullptr && description.bytes != 0, kInvalid, "region ", description.name, ": ",
            description.bytes, " bytes at ", description.address, ", it must not be empty");
  NXL_CHECK(checked_add(reinterpret_cast<uint64_t>(description.address), description.bytes), kInvalid, "region ",
            description.name, ": ", description.bytes, " bytes at ", description.address, " leave the address space");
  NXL_CHECK(description.name.size() <= 255, kInvalid, "region name of ", description.name.size(),
            " bytes, the limit is 255");
  auto region = std::make_shared<Region>();
  region->description = description;
  region->key = random_key();
  region->exported = exporter_(description, &region->exported_offset);
  const std::lock_guard lock(mutex_);
  NXL_CHECK(regions_->size() < max_regions_, kUnavailable, "region ", description.name, ": max_regions is ",
            max_regions_, "; deregister some or raise it");
  region->index = next_index_++;
  auto changed = std::make_shared<RegionMap>(*regions_);
  changed->emplace(region->index, region);
  regions_ = std::move(changed);
  return region;
}

Status RegionTable::remove(uint32_t index) {
  const std::lock_guard lock(mutex_);
  const auto it = regions_->find(index);
  if (it == regions_->end()) return {kNrtInvalidHandle, "region " + std::to_string(index) + " is not registered"};
  if (const auto pins = pins_.find(index); pins != pins_.end()) {
    return {kNrtResource, detail::concat("region ", index, " (", it->second->description.name, ") is in use by ",
                                         pins->second, " transfers; release them first")};
  }
  if (it->second->held.load() != 0) {
    return {kNrtResource, detail::concat("region ", index, " (", it->second->description.name,
                                         ") is being read by a peer; try again when that is over")};
  }
  auto changed = std::make_shared<RegionMap>(*regions_);
  changed->erase(index);
  regions_ = std::move(changed);
  return Status::ok();
}

std::shared_ptr<const RegionMap> RegionTable::snapshot() const {
  const std::lock_guard lock(mutex_);
  return regions_;
}

bool RegionTable::pin(std::span<const uint32_t> regions) {
  const std::lock_guard lock(mutex_);
  for (const uint32_t index : regions) {
    if (!regions_->contains(index)) return false;
  }
  for (const uint32_t index : regions) ++pins_[index];
  return true;
}

void RegionTable::unpin(std::span<const uint32_t> regions) {
  const std::lock_guard lock(mutex_);
  for (const uint32_t index : regions) {
    const auto it = pins_.find(index);
    if (--it->second == 0) pins_.erase(it);
  }
}

uint64_t check_runs(std::span<const Run> runs, const RegionMap& local, const RemoteRegionMap& remote,
                    bool remote_is_source, const std::string& peer, std::vector<uint32_t>& local_used,
                    std::vector<uint32_t>& remote_used) {
  Lookup find_local(local, local_used);
  Lookup find_remote(remote, remote_used);
  uint64_t total = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    if (run.bytes == 0 || run.count == 0) refuse(i, run, "it moves nothing");
    const uint32_t local_index = remote_is_source ? run.target_region : run.source_region;
    const uint32_t remote_index = remote_is_source ? run.source_region : run.target_region;
    const Region* here = find_local(local_index);
    if (here == nullptr) refuse(i, run, detail::concat("local region ", local_index, " is not registered"));
    const RemoteRegion* there = find_remote(remote_index);
    if (there == nullptr) refuse(i, run, detail::concat(peer, " has no region ", remote_index));
    if (!(remote_is_source ? there->readable : there->writable)) {
      refuse(
          i, run,
          detail::concat("region ", remote_index, " of ", peer, " may not be ", remote_is_source ? "read" : "written"));
    }
    const uint64_t source_limit = remote_is_source ? there->bytes : here->description.bytes;
    const uint64_t target_limit = remote_is_source ? here->description.bytes : there->bytes;
    if (!inside(run.source_offset, run.bytes, run.source_stride, run.count, source_limit)) {
      refuse(i, run, detail::concat("it leaves the source region of ", source_limit, " bytes"));
    }
    if (!inside(run.target_offset, run.bytes, run.target_stride, run.count, target_limit)) {
      refuse(i, run, detail::concat("it leaves the target region of ", target_limit, " bytes"));
    }
    if (run.count > 1 && run.target_stride < run.bytes) {
      refuse(i, run, detail::concat("pieces overlap at the target, target_stride is ", run.target_stride));
    }
    // Cannot wrap inside one region's limit unless the source is read many times over (stride 0).
    const auto sum = checked_add(total, run.total_bytes());
    if (!sum || run.total_bytes() / run.count != run.bytes) refuse(i, run, "the transfer has more than 2^64 bytes");
    total = *sum;
  }
  return total;
}

}  // namespace nxl::kv
