// SPDX-License-Identifier: Apache-2.0
// The planner: from two ranks' layouts to the byte runs that move a range of tokens from one to the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/api.h"
#include "kv/layout.h"

namespace nxl::kv {

// `count` pieces of `bytes`, piece i at offset + i * stride on either side.
struct Run {
  uint32_t source_region = 0;
  uint32_t target_region = 0;
  uint64_t source_offset = 0;
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
  uint64_t source_stride = 0;
  uint64_t target_stride = 0;
  uint32_t count = 1;

  uint64_t total_bytes() const { return bytes * count; }
};

// The blocks of one request on one rank, in token order. The first one holds the rank's tokens from position
// `first_token` of the request on, a multiple of context_size * context_interleave.
struct BlockList {
  std::span<const uint32_t> ids;
  uint64_t first_token = 0;
};

// Token positions [begin, end) of the request, the same on both ranks: ranges, never counts, address the data.
struct TokenRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The tokens whose bytes, in all layers, end at `end_byte` of the bytes that a list of runs moves, taken in order.
struct TokenShare {
  TokenRange tokens;
  uint64_t end_byte = 0;
};

class NXL_API Plan {
 public:
  // Validates both layouts and proves the pair possible. Throws Error(kInvalid) that names the field and both values.
  static Plan make(const KvLayout& source, const KvLayout& target);

  // True when the two ranks share no layer or no head: nothing ever moves between them.
  bool empty() const { return units_.empty(); }

  // Appends the runs of `tokens` to `runs`; adjacent runs are joined. Tokens that one of the two ranks does not hold
  // (context parallel) are left out. Throws Error(kInvalid) when a block list does not hold a token it must, or a block
  // id is outside the pool; `runs` is then as it was. Runs go layer by layer; with `shares` (which must be empty) they
  // do so for a few shares of the tokens, one after the other, so that what breaks off leaves whole tokens in place.
  void apply(TokenRange tokens, const BlockList& source, const BlockList& target, std::vector<Run>& runs,
             std::vector<TokenShare>* shares = nullptr) const;

  // The slots of the target's last touched block behind `tokens.end`, to be zeroed: runs whose source is not used.
  void tail(TokenRange tokens, const BlockList& target, std::vector<Run>& runs) const;

 private:
  // One part of one layer that both ranks hold, the offsets already at the first shared head.
  struct Unit {
    KvSlot source;
    KvSlot target;
  };
  // Consecutive tokens inside one block on both sides.
  struct Segment {
    uint64_t source_block, source_token;
    uint64_t target_block, target_token;
    uint64_t tokens;
    uint64_t position;  // of the first one in the request
  };
  // Per side: what maps a token position to a block and a place in it.
  struct Side {
    uint32_t context_rank, context_size, context_interleave, block_tokens, block_count;
    bool holds(uint64_t token) const;
    uint64_t local(uint64_t token) const;        // among the tokens this rank holds
    uint64_t consecutive(uint64_t token) const;  // tokens from here on that are neighbours here
    uint32_t block(const BlockList& list, uint64_t token, const char* who) const;
  };

  void place_all(std::span<const Segment> segments, std::vector<Run>& runs) const;
  void emit(const Unit& unit, const Segment& segment, std::vector<Run>& runs, size_t first) const;

  Side source_{};
  Side target_{};
  uint64_t head_bytes_ = 0;
  uint64_t heads_ = 0;  // shared by the two ranks
  std::vector<Unit> units_;
};

// Which of `sources` (the ranks of the peer) `target` reads from: one of each group of replicas, spread by the target's
// tp_rank. Proves that every layer, head and token the target holds is covered exactly once; throws Error(kInvalid)
// that names the first one that is not.
NXL_API std::vector<uint32_t> choose_sources(std::span<const KvLayout> sources, const KvLayout& target);

}  // namespace nxl::kv
