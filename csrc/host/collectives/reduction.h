// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of the same piece from every member of a group.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/dtype.h"

namespace nxl::host {

// Reduces `elements` elements of `count` sources into `out`, which may be one of them. Sources are taken in the order
// given, narrow floats accumulate in f32 and are rounded once, so the result is the same bits on every member.
using Reduction = void (*)(std::byte* out, const std::byte* const* sources, size_t count, size_t elements);

// Null for a kind that the dtype does not have. Kinds: add multiply maximum minimum and or xor. Integers wrap; maximum
// and minimum pass NaN on; bool has and, or, xor.
Reduction find_reduction(DType dtype, std::string_view kind);

}  // namespace nxl::host
