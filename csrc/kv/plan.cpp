// SPDX-License-Identifier: Apache-2.0
// Plans in closed form: everything but block ids is settled in make(), so apply() costs a few instructions a run.
#include "kv/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "core/error.h"

namespace nxl::kv {
namespace {

constexpr uint64_t kMaxPeriod = 1u << 16;  // tokens after which the context-parallel pattern of a pair repeats
// Of one transfer. More of them would say more exactly what is missing, and cost every transfer more changes of region.
constexpr size_t kTokenShares = 8;

template <typename T>
void check_equal(const char* field, const T& source, const T& target) {
  NXL_CHECK(source == target, kInvalid, "KV layouts do not fit: ", field, " is ", source, " at the source and ", target,
            " at the target");
}

void check_same_model(const KvLayout& source, const KvLayout& target) {
  check_equal("dtype", source.dtype, target.dtype);
  check_equal("element_bytes", source.element_bytes, target.element_bytes);
  check_equal("head_dim", source.head_dim, target.head_dim);
  check_equal("total_heads", source.total_heads, target.total_heads);
  check_equal("parts", source.parts, target.parts);
  check_equal("total_layers", source.total_layers, target.total_layers);
}

void append(std::vector<Run>& runs, size_t first, const Run& run) {
  if (run.count == 1 && runs.size() > first) {
    Run& last = runs.back();
    if (last.count == 1 && last.source_region == run.source_region && last.target_region == run.target_region &&
        last.source_offset + last.bytes == run.source_offset && last.target_offset + last.bytes == run.target_offset) {
      last.bytes += run.bytes;
      return;
    }
  }
  runs.push_back(run);
}

// What all segments of one length have in common within a unit.
struct Shape {
  uint64_t tokens = 0;                                                         // of such a segment
  Run run;                                                                     // without its offsets
  uint64_t outer_count = 0, outer_source_stride = 0, outer_target_stride = 0;  // runs per segment
};

template <typename Unit>
Shape shape_of(const Unit& unit, uint64_t heads_shared, uint64_t head_bytes, uint64_t token_count) {
  const KvSlot& s = unit.source;
  const KvSlot& t = unit.target;
  Shape shape;
  shape.tokens = token_count;
  Run& run = shape.run;
  run.source_region = s.region;
  run.target_region = t.region;

  // The innermost dimension whose elements are neighbours on both sides joins the run; of the two that are left over
  // the longer one becomes the strided one.
  struct Dimension {
    uint64_t count, source_stride, target_stride;
  };
  Dimension heads{heads_shared, s.head_stride, t.head_stride};
  Dimension tokens{token_count, s.token_stride, t.token_stride};
  run.bytes = head_bytes;
  const auto join = [&run](Dimension& d) {
    if (d.count == 1 || (d.source_stride == run.bytes && d.target_stride == run.bytes)) {
      run.bytes *= d.count;
      d.count = 1;
      return true;
    }
    return false;
  };
  if (join(heads)) {
    join(tokens);
  } else if (join(tokens)) {
    join(heads);
  }
  Dimension outer = heads;
  Dimension inner = tokens;
  if (outer.count > inner.count) std::swap(outer, inner);
  run.count = static_cast<uint32_t>(inner.count);
  run.source_stride = inner.count > 1 ? inner.source_stride : 0;
  run.target_stride = inner.count > 1 ? inner.target_stride : 0;
  shape.outer_count = outer.count;
  shape.outer_source_stride = outer.source_stride;
  shape.outer_target_stride = outer.target_stride;
  return shape;
}

template <typename Unit, typename Segment>
void place(const Unit& unit, const Segment& segment, const Shape& shape, std::vector<Run>& runs, size_t first) {
  const KvSlot& s = unit.source;
  const KvSlot& t = unit.target;
  Run run = shape.run;
  run.source_offset = s.offset + segment.source_block * s.block_stride + segment.source_token * s.token_stride;
  run.target_offset = t.offset + segment.target_block * t.block_stride + segment.target_token * t.token_stride;
  for (uint64_t i = 0; i < shape.outer_count; ++i) {
    append(runs, first, run);
    run.source_offset += shape.outer_source_stride;
    run.target_offset += shape.outer_target_stride;
  }
}

}  // namespace

bool Plan::Side::holds(uint64_t token) const { return token / context_interleave % context_size == context_rank; }

uint64_t Plan::Side::local(uint64_t token) const {
  const uint64_t period = uint64_t{context_interleave} * context_size;
  return token / period * context_interleave + token % context_interleave;
}

uint64_t Plan::Side::consecutive(uint64_t token) const {
  return context_size == 1 ? UINT64_MAX : context_interleave - token % context_interleave;
}

uint32_t Plan::Side::block(const BlockList& list, uint64_t token, const char* who) const {
  const uint64_t period = uint64_t{context_interleave} * context_size;
  NXL_CHECK(context_size == 1 || list.first_token % period == 0, kInvalid, who, " block list begins at token ",
            list.first_token, ", it must be a multiple of context_size * context_interleave = ", period);
  NXL_CHECK(token >= list.first_token, kInvalid, who, " block list begins at token ", list.first_token, ", token ",
            token, " lies before it");
  const uint64_t index = (local(token) - list.first_token / context_size) / block_tokens;
  NXL_CHECK(index < list.ids.size(), kInvalid, who, " block list has ", list.ids.size(), " blocks of ", block_tokens,
            " tokens from token ", list.first_token, " on; token ", token, " lies behind them");
  NXL_CHECK(list.ids[index] < block_count, kInvalid, who, " block id ", list.ids[index], " is outside the pool of ",
            block_count, " blocks");
  return list.ids[index];
}

Plan Plan::make(const KvLayout& source, const KvLayout& target) {
  source.validate("source");
  target.validate("target");
  check_same_model(source, target);

  Plan plan;
  const auto side = [](const KvLayout& layout) {
    return Side{layout.context_rank, layout.context_size, layout.context_interleave, layout.block_tokens,
                layout.block_count};
  };
  plan.source_ = side(source);
  plan.target_ = side(target);
  plan.head_bytes_ = source.head_bytes();

  const uint32_t head_begin = std::max(source.first_head(), target.first_head());
  const uint32_t head_end =
      std::min(source.first_head() + source.head_count(), target.first_head() + target.head_count());
  const uint32_t layer_begin = std::max(source.first_layer, target.first_layer);
  const uint32_t layer_end = std::min(source.first_layer + source.layer_count, target.first_layer + target.layer_count);
  if (head_begin >= head_end || layer_begin >= layer_end) return plan;

  plan.heads_ = head_end - head_begin;
  const auto slot_at = [head_begin](const KvLayout& layout, uint32_t layer, uint32_t part) {
    KvSlot slot = layout.slots[uint64_t{layer - layout.first_layer} * layout.parts + part];
    slot.offset += uint64_t{head_begin - layout.first_head()} * slot.head_stride;
    return slot;
  };
  plan.units_.reserve(uint64_t{layer_end - layer_begin} * source.parts);
  for (uint32_t layer = layer_begin; layer < layer_end; ++layer) {
    for (uint32_t part = 0; part < source.parts; ++part) {
      plan.units_.push_back({slot_at(source, layer, part), slot_at(target, layer, part)});
    }
  }
  return plan;
}

void Plan::emit(const Unit& unit, const Segment& segment, std::vector<Run>& runs, size_t first) const {
  place(unit, segment, shape_of(unit, heads_, head_bytes_, segment.tokens), runs, first);
}

void Plan::apply(TokenRange tokens, const BlockList& source, const BlockList& target, std::vector<Run>& runs,
                 std::vector<TokenShare>* shares) const {
  NXL_CHECK(tokens.begin <= tokens.end, kInvalid, "token range begins at ", tokens.begin, " and ends at ", tokens.end);
  if (empty()) return;
  std::vector<Segment> segments;
  for (uint64_t token = tokens.begin; token < tokens.end;) {
    const uint64_t left = std::min({tokens.end - token, source_.consecutive(token), target_.consecutive(token)});
    if (!source_.holds(token) || !target_.holds(token)) {
      token += left;
      continue;
    }
    Segment segment;
    segment.source_block = source_.block(source, token, "source");
    segment.target_block = target_.block(target, token, "target");
    segment.source_token = (source_.local(token) - source.first_token / source_.context_size) % source_.block_tokens;
    segment.target_token = (target_.local(token) - target.first_token / target_.context_size) % target_.block_tokens;
    segment.tokens =
        std::min({left, source_.block_tokens - segment.source_token, target_.block_tokens - segment.target_token});
    segment.position = token;
    segments.push_back(segment);
    token += segment.tokens;
  }
  runs.reserve(runs.size() +
               units_.size() * segments.size());  // a head split may need more: growing costs as much again
  if (shares == nullptr) return place_all(segments, runs);
  const size_t count = std::min(segments.size(), kTokenShares);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = segments.size() * i / count, end = segments.size() * (i + 1) / count;
    const auto share = std::span(segments).subspan(begin, end - begin);
    place_all(share, runs);
    for (const Segment& segment : share) bytes += segment.tokens * heads_ * head_bytes_ * units_.size();
    const uint64_t first_token = i == 0 ? tokens.begin : share.front().position;
    shares->push_back({{first_token, end == segments.size() ? tokens.end : segments[end].position}, bytes});
  }
}

void Plan::place_all(std::span<const Segment> segments, std::vector<Run>& runs) const {
  const size_t first = runs.size();
  for (const Unit& unit : units_) {
    Shape shape;
    for (const Segment& segment : segments) {
      if (shape.tokens != segment.tokens) shape = shape_of(unit, heads_, head_bytes_, segment.tokens);
      place(unit, segment, shape, runs, first);
    }
  }
}

void Plan::tail(TokenRange tokens, const BlockList& target, std::vector<Run>& runs) const {
  if (empty() || tokens.begin >= tokens.end) return;
  // The last token of the range that the target holds decides which block is touched last.
  uint64_t last = tokens.end;
  do {
    if (last == tokens.begin) return;
    --last;
  } while (!target_.holds(last));
  const uint64_t block = target_.block(target, last, "target");
  const uint64_t used = (target_.local(last) - target.first_token / target_.context_size) % target_.block_tokens + 1;
  if (used == target_.block_tokens) return;
  const Segment segment{block, used, block, used, target_.block_tokens - used, 0};
  const size_t first = runs.size();
  for (const Unit& unit : units_) emit({unit.target, unit.target}, segment, runs, first);
}

std::vector<uint32_t> choose_sources(std::span<const KvLayout> sources, const KvLayout& target) {
  target.validate("target");
  using Share = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
  std::map<Share, std::vector<uint32_t>> replicas;
  for (uint32_t i = 0; i < sources.size(); ++i) {
    const KvLayout& s = sources[i];
    s.validate("source");
    check_same_model(s, target);
    replicas[{s.first_layer, s.layer_count, s.first_head(), s.head_count(), s.context_rank, s.context_size,
              s.context_interleave}]
        .push_back(i);
  }
  std::vector<uint32_t> chosen;
  uint64_t period = uint64_t{target.context_size} * target.context_interleave;
  for (const auto& [share, members] : replicas) {
    const uint32_t index = members[target.tp_rank % members.size()];
    if (Plan::make(sources[index], target).empty()) continue;
    chosen.push_back(index);
    period = std::lcm(period, uint64_t{sources[index].context_size} * sources[index].context_interleave);
    NXL_CHECK(period <= kMaxPeriod, kInvalid, "KV layouts do not fit: the context-parallel patterns repeat after ",
              period, " tokens, more than ", kMaxPeriod);
  }
  std::sort(chosen.begin(), chosen.end());

  const auto holds = [](const KvLayout& l, uint64_t token) {
    return token / l.context_interleave % l.context_size == l.context_rank;
  };
  const auto has = [](uint64_t first, uint64_t count, uint64_t value) {
    return value >= first && value - first < count;
  };
  for (uint32_t layer = target.first_layer; layer < target.first_layer + target.layer_count; ++layer) {
    for (uint32_t head = target.first_head(); head < target.first_head() + target.head_count(); ++head) {
      std::vector<const KvLayout*> here;
      for (const uint32_t index : chosen) {
        const KvLayout& s = sources[index];
        if (has(s.first_layer, s.layer_count, layer) && has(s.first_head(), s.head_count(), head)) here.push_back(&s);
      }
      for (uint64_t token = 0; token < period; ++token) {
        if (!holds(target, token)) continue;
        const auto times = std::count_if(here.begin(), here.end(), [&](const KvLayout* s) { return holds(*s, token); });
        NXL_CHECK(times == 1, kInvalid, "KV layouts do not fit: layer ", layer, ", head ", head, ", token ", token,
                  " of the target is held by ", times, " of the ", sources.size(), " source ranks, it must be one");
      }
    }
  }
  return chosen;
}

}  // namespace nxl::kv
