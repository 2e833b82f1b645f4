// SPDX-License-Identifier: Apache-2.0
// Descriptor lists: places in registered regions, checked once and then used by number, request after request.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/api.h"
#include "kv/plan.h"

namespace nxl::kv {

// `count` descriptors of `bytes`, descriptor i at offset + i * stride of a region.
struct Descriptor {
  uint32_t region = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t stride = 0;
  uint32_t count = 1;
};

// One side of transfers by number: descriptors are counted through all rows. Immutable. It names regions by index, and
// an index is never used twice, so a list that outlives its regions or its peer's incarnation is refused, not misread.
class NXL_API DescriptorList {
 public:
  // Throws Error(kInvalid) that names the row: it has no bytes, or there are more than 2^32 descriptors in all.
  explicit DescriptorList(std::vector<Descriptor> rows);

  uint32_t size() const { return first_.back(); }
  const std::vector<Descriptor>& rows() const { return rows_; }
  struct Place {
    uint32_t region;
    uint64_t offset, bytes;
  };
  Place at(uint32_t index) const;  // throws Error(kInvalid) for an index that is not below size()

 private:
  std::vector<Descriptor> rows_;
  std::vector<uint32_t> first_;  // per row, the number of its first descriptor; one more at the end
};

// Runs from descriptor source_indices[i] of `source` to target_indices[i] of `target`, neighbours joined. Throws
// Error(kInvalid) that names the pair: an index out of range, different lengths, lists of different sizes.
NXL_API std::vector<Run> runs_between(const DescriptorList& source, std::span<const uint32_t> source_indices,
                                      const DescriptorList& target, std::span<const uint32_t> target_indices);

}  // namespace nxl::kv
