// SPDX-License-Identifier: Apache-2.0
// Checks of a KV layout: every size is hostile until proved, because a layout comes from a peer.
#include "kv/layout.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "core/checked.h"
#include "core/error.h"

namespace nxl::kv {
namespace {

constexpr uint32_t kMaxDimension = 1u << 20;  // heads, layers, tokens of a block, ranks
constexpr uint64_t kMaxIntervals = 1u << 22;  // of the exact overlap check

// Bytes from the first to one past the last element of `counts` steps of `strides`, each element `bytes` long.
std::optional<uint64_t> extent(std::initializer_list<std::pair<uint64_t, uint64_t>> dimensions, uint64_t bytes) {
  uint64_t total = bytes;
  for (const auto& [count, stride] : dimensions) {
    const auto step = checked_mul(count - 1, stride);
    if (!step) return std::nullopt;
    const auto sum = checked_add(total, *step);
    if (!sum) return std::nullopt;
    total = *sum;
  }
  return total;
}

// True when no two index tuples meet: each stride is at least the extent of all dimensions with smaller strides.
bool elements_are_disjoint(std::array<std::pair<uint64_t, uint64_t>, 3> dimensions, uint64_t bytes) {
  std::sort(dimensions.begin(), dimensions.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  uint64_t below = bytes;
  for (const auto& [count, stride] : dimensions) {
    if (count == 1) continue;
    if (stride < below) return false;
    below += (count - 1) * stride;  // cannot wrap: the caller has computed the extent
  }
  return true;
}

struct Placed {
  const KvSlot* slot;
  size_t index;
  uint64_t begin;
  uint64_t end;
};

// Slots whose extents meet must interleave block by block: the same block stride, all within one stride, no shared
// byte.
void check_cluster(const std::string& who, const KvLayout& layout, const std::vector<Placed>& cluster) {
  if (cluster.size() < 2) return;
  const KvSlot& first = *cluster.front().slot;
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  const uint64_t per_slot = uint64_t{layout.block_tokens} * layout.head_count();
  const auto total = checked_mul(per_slot, cluster.size());
  NXL_CHECK(total && *total <= kMaxIntervals, kInvalid, who, " KV layout: slots ", cluster.front().index, " and ",
            cluster[1].index, " overlap in region ", first.region, " in a block of more than ", kMaxIntervals,
            " elements; give them regions of their own");
  pieces.reserve(*total);
  for (const Placed& placed : cluster) {
    NXL_CHECK(placed.slot->block_stride == first.block_stride, kInvalid, who, " KV layout: slots ",
              cluster.front().index, " and ", placed.index, " interleave in region ", first.region,
              " but have block_stride ", first.block_stride, " and ", placed.slot->block_stride);
    for (uint64_t token = 0; token < layout.block_tokens; ++token) {
      for (uint64_t head = 0; head < layout.head_count(); ++head) {
        const uint64_t begin =
            placed.slot->offset + token * placed.slot->token_stride + head * placed.slot->head_stride;
        pieces.emplace_back(begin, begin + layout.head_bytes());
      }
    }
  }
  std::sort(pieces.begin(), pieces.end());
  for (size_t i = 1; i < pieces.size(); ++i) {
    NXL_CHECK(pieces[i].first >= pieces[i - 1].second, kInvalid, who, " KV layout: two elements share byte ",
              pieces[i].first, " of region ", first.region);
  }
  const uint64_t span = pieces.back().second - pieces.front().first;
  NXL_CHECK(layout.block_count == 1 || span <= first.block_stride, kInvalid, who, " KV layout: one block spans ", span,
            " bytes in region ", first.region, ", more than block_stride ", first.block_stride);
}

}  // namespace

uint32_t KvLayout::first_head() const { return static_cast<uint32_t>(uint64_t{tp_rank} * total_heads / tp_size); }

uint32_t KvLayout::head_count() const { return std::max(1u, total_heads / tp_size); }

void KvLayout::validate(const std::string& who) const {
  const auto within = [&](const char* field, uint64_t value, uint64_t low, uint64_t high) {
    NXL_CHECK(value >= low && value <= high, kInvalid, who, " KV layout: ", field, " is ", value, ", it must be ", low,
              " to ", high);
  };
  within("element_bytes", element_bytes, 1, 16);
  within("head_dim", head_dim, 1, kMaxDimension);
  within("total_heads", total_heads, 1, kMaxDimension);
  within("parts", parts, 1, 2);
  within("total_layers", total_layers, 1, kMaxDimension);
  within("first_layer", first_layer, 0, total_layers - 1);
  within("layer_count", layer_count, 1, total_layers - first_layer);
  within("tp_size", tp_size, 1, kMaxDimension);
  within("tp_rank", tp_rank, 0, tp_size - 1);
  within("context_size", context_size, 1, kMaxDimension);
  within("context_rank", context_rank, 0, context_size - 1);
  within("context_interleave", context_interleave, 1, kMaxDimension);
  within("block_tokens", block_tokens, 1, kMaxDimension);
  within("block_count", block_count, 1, UINT32_MAX);
  NXL_CHECK(total_heads % tp_size == 0 || tp_size % total_heads == 0, kInvalid, who, " KV layout: tp_size ", tp_size,
            " and total_heads ", total_heads, ": one must divide the other");
  NXL_CHECK(slots.size() == uint64_t{layer_count} * parts, kInvalid, who, " KV layout: ", slots.size(),
            " slots, it must be layer_count * parts = ", uint64_t{layer_count} * parts);

  std::vector<Placed> placed;
  placed.reserve(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    const KvSlot& slot = slots[i];
    NXL_CHECK(slot.region < region_bytes.size(), kInvalid, who, " KV layout: slot ", i, " names region ", slot.region,
              " of ", region_bytes.size());
    const auto size =
        extent({{block_count, slot.block_stride}, {block_tokens, slot.token_stride}, {head_count(), slot.head_stride}},
               head_bytes());
    NXL_CHECK(size && range_within(slot.offset, *size, region_bytes[slot.region]), kInvalid, who, " KV layout: slot ",
              i, " (offset ", slot.offset, ", ", block_count, " blocks) leaves region ", slot.region, " of ",
              region_bytes[slot.region], " bytes");
    NXL_CHECK(
        elements_are_disjoint(
            {{{block_count, slot.block_stride}, {block_tokens, slot.token_stride}, {head_count(), slot.head_stride}}},
            head_bytes()),
        kInvalid, who, " KV layout: elements of slot ", i, " overlap: block_stride ", slot.block_stride,
        ", token_stride ", slot.token_stride, ", head_stride ", slot.head_stride);
    placed.push_back({&slot, i, slot.offset, slot.offset + *size});
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.slot->region, a.begin) < std::pair(b.slot->region, b.begin);
  });
  std::vector<Placed> cluster;
  uint64_t cluster_end = 0;
  for (const Placed& next : placed) {
    const bool joins =
        !cluster.empty() && cluster.front().slot->region == next.slot->region && next.begin < cluster_end;
    if (!joins) {
      check_cluster(who, *this, cluster);
      cluster.clear();
      cluster_end = 0;
    }
    cluster.push_back(next);
    cluster_end = std::max(cluster_end, next.end);
  }
  check_cluster(who, *this, cluster);
}

}  // namespace nxl::kv
