// SPDX-License-Identifier: Apache-2.0
// Indices come in any integer type; they are read as int64, and an unsigned one that does not fit is the largest int64.
#pragma once

#include <cstdint>
#include <limits>

#include "host/kernels/dtype_map.h"

namespace nxl::host {

inline int64_t read_index(const char* p, at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return *reinterpret_cast<const int8_t*>(p);
    case at::kByte:
      return *reinterpret_cast<const uint8_t*>(p);
    case at::kShort:
      return *reinterpret_cast<const int16_t*>(p);
    case at::kUInt16:
      return *reinterpret_cast<const uint16_t*>(p);
    case at::kInt:
      return *reinterpret_cast<const int32_t*>(p);
    case at::kUInt32:
      return *reinterpret_cast<const uint32_t*>(p);
    case at::kUInt64: {
      const uint64_t value = *reinterpret_cast<const uint64_t*>(p);
      constexpr uint64_t limit = std::numeric_limits<int64_t>::max();
      return static_cast<int64_t>(value < limit ? value : limit);
    }
    default:
      return *reinterpret_cast<const int64_t*>(p);
  }
}

}  // namespace nxl::host
