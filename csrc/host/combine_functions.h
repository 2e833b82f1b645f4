// SPDX-License-Identifier: Apache-2.0
// The functions that combine two elements of one type, for reductions inside a core and between ranks alike. Integers
// wrap; a NaN stays.
#pragma once

#include <cstdint>
#include <type_traits>

namespace nxl::host {

template <typename T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return x != x;
  return false;
}

// Each works in the accumulator type; on bool, add is or and multiply is and.
struct CombineAdd {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a || b;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
};
struct CombineMultiply {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a && b;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};
struct CombineMaximum {
  template <typename T>
  static T apply(T a, T b) {
    return (is_nan(a) || a > b) ? a : b;
  }
};
struct CombineMinimum {
  template <typename T>
  static T apply(T a, T b) {
    return (is_nan(a) || a < b) ? a : b;
  }
};
struct CombineAnd {
  template <typename T>
  static T apply(T a, T b) {
    return a & b;
  }
};
struct CombineOr {
  template <typename T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct CombineXor {
  template <typename T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};

}  // namespace nxl::host
