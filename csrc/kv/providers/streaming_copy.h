// SPDX-License-Identifier: Apache-2.0
// Copies many scattered pieces of memory, past the caches when there is much of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/api.h"

namespace nxl::kv {

// Source and target do not overlap. No initial values: arrays of them are filled by their owner.
struct Piece {
  std::byte* target;
  const std::byte* source;
  size_t bytes;
};

enum class Stores {
  kOrdinary,     // the target is wanted in the caches: small transfers
  kNonTemporal,  // the target goes to memory and leaves the caches to others
};

// All bytes are in place, for every thread, when it has returned.
NXL_API void copy_pieces(std::span<const Piece> pieces, Stores stores);

// The widest kernel of this CPU ("avx512", "avx2", "portable"), and each of them by name for tests; an instruction set
// that the CPU lacks gives false.
NXL_API const char* streaming_copy_kernel();
NXL_API bool copy_pieces_with(const char* kernel, std::span<const Piece> pieces);

}  // namespace nxl::kv
