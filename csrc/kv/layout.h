// SPDX-License-Identifier: Apache-2.0
// How one rank keeps its part of a KV cache: which layers, heads and tokens, and where each lies in its memory regions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/api.h"

namespace nxl::kv {

// Where one part (K or V, or the latent of MLA) of one layer lies. Strides in bytes; a head's channels are contiguous.
// [block, token, head, channel] (NHD) and [block, head, token, channel] (HND), K and V in one region or in two, K/V
// first or block first: all are values of these five numbers.
struct KvSlot {
  uint32_t region = 0;  // index into KvLayout::region_bytes
  uint64_t offset = 0;  // of block 0, token 0, head 0
  uint64_t block_stride = 0;
  uint64_t token_stride = 0;
  uint64_t head_stride = 0;
};

struct NXL_API KvLayout {
  std::string dtype;  // a name of core/dtype.h; both sides must agree
  uint32_t element_bytes = 0;
  uint32_t head_dim = 0;      // elements of one head of one token; MLA: the latent dimension
  uint32_t total_heads = 0;   // KV heads of the whole model; MLA: 1
  uint32_t parts = 2;         // 2: K and V; 1: MLA
  uint32_t total_layers = 0;  // of the whole model
  uint32_t first_layer = 0;   // pipeline stage: this rank has [first_layer, first_layer + layer_count)
  uint32_t layer_count = 0;
  uint32_t tp_rank = 0;       // heads are dealt in equal runs; with more ranks than heads, tp_size / total_heads
  uint32_t tp_size = 1;       // ranks in a row hold the same head (grouped-query replication)
  uint32_t context_rank = 0;  // context parallel: token i is on rank (i / context_interleave) % context_size
  uint32_t context_size = 1;
  uint32_t context_interleave = 1;
  uint32_t block_tokens = 0;  // tokens of this rank in one block
  uint32_t block_count = 0;
  std::vector<KvSlot> slots;  // slots[(layer - first_layer) * parts + part]
  std::vector<uint64_t> region_bytes;

  uint32_t first_head() const;  // of the heads this rank holds
  uint32_t head_count() const;
  uint64_t head_bytes() const { return uint64_t{head_dim} * element_bytes; }

  // Proves that every element of every block lies inside its region and that no two elements share a byte. Throws
  // Error(kInvalid) that names the field, its value and what it must be. `who` is "local" or the peer's name.
  void validate(const std::string& who) const;
};

}  // namespace nxl::kv
