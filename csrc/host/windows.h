// SPDX-License-Identifier: Apache-2.0
// Which bytes of its buffer a value covers, and whether its elements overlap.
#pragma once

#include <cstdint>
#include <string>

#include "host/program.h"

namespace nxl::host {

// The bytes [begin, end) of the buffer between a value's first and last element; empty for a value without elements.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool empty() const { return begin == end; }
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// Throws Error(kInvalid), naming `what`, when a size is negative, a product or sum overflows, or the window leaves the
// buffer of `buffer_bytes`.
Extent checked_extent(const Value& value, uint64_t buffer_bytes, const std::string& what);

// True when no two elements share a byte, by the rule that every dimension's stride is at least the extent of the
// dimensions with smaller strides: what transposes, positive-step slices and reshapes of dense values give.
bool elements_disjoint(const Value& value);

// True when the two values, whose buffers start at the given bytes of one memory, share no byte although their extents
// overlap, as columns of one matrix do. Finds out by marking bytes: more than 16 million of them count as shared.
bool windows_interleave(const Value& left, uint64_t left_begin, const Value& right, uint64_t right_begin);

}  // namespace nxl::host
