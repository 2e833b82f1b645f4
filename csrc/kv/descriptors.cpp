// SPDX-License-Identifier: Apache-2.0
// From numbers of descriptors to runs.
#include "kv/descriptors.h"

#include <algorithm>

#include "core/checked.h"
#include "core/error.h"

namespace nxl::kv {

DescriptorList::DescriptorList(std::vector<Descriptor> rows) : rows_(std::move(rows)) {
  first_.reserve(rows_.size() + 1);
  uint64_t count = 0;
  first_.push_back(0);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Descriptor& row = rows_[i];
    NXL_CHECK(row.bytes != 0 && row.count != 0, kInvalid, "descriptor row ", i, " is ", row.count, " x ", row.bytes,
              " bytes");
    const auto reach = checked_mul(row.stride, row.count - 1);
    const auto last = reach ? checked_add(row.offset, *reach) : std::nullopt;
    NXL_CHECK(last && checked_add(*last, row.bytes), kInvalid, "descriptor row ", i, " ends beyond 2^64: offset ",
              row.offset, ", ", row.count, " times stride ", row.stride);
    count += row.count;
    NXL_CHECK(count <= UINT32_MAX, kInvalid, "descriptor row ", i, " is number ", count, ", the limit is ", UINT32_MAX);
    first_.push_back(static_cast<uint32_t>(count));
  }
}

DescriptorList::Place DescriptorList::at(uint32_t index) const {
  NXL_CHECK(index < size(), kInvalid, "descriptor ", index, " of a list of ", size());
  size_t row = index;  // as long as every row is one descriptor
  if (size() != rows_.size()) {
    row = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), index) - first_.begin()) - 1;
  }
  const Descriptor& found = rows_[row];
  return {found.region, found.offset + uint64_t{index - first_[row]} * found.stride, found.bytes};
}

std::vector<Run> runs_between(const DescriptorList& source, std::span<const uint32_t> source_indices,
                              const DescriptorList& target, std::span<const uint32_t> target_indices) {
  NXL_CHECK(source_indices.size() == target_indices.size(), kInvalid, source_indices.size(),
            " descriptors of the source for ", target_indices.size(), " of the target");
  std::vector<Run> runs;
  runs.reserve(source_indices.size());
  for (size_t i = 0; i < source_indices.size(); ++i) {
    const auto from = source.at(source_indices[i]);
    const auto to = target.at(target_indices[i]);
    NXL_CHECK(from.bytes == to.bytes, kInvalid, "pair ", i, ": descriptor ", source_indices[i], " of the source has ",
              from.bytes, " bytes, descriptor ", target_indices[i], " of the target ", to.bytes);
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.source_region == from.region && last.target_region == to.region &&
          last.source_offset + last.bytes == from.offset && last.target_offset + last.bytes == to.offset) {
        last.bytes += from.bytes;
        continue;
      }
    }
    runs.push_back({from.region, to.region, from.offset, to.offset, from.bytes, 0, 0, 1});
  }
  return runs;
}

}  // namespace nxl::kv
