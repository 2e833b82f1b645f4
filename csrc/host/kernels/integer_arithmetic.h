// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic that never traps: StableHLO leaves division by zero and overflow to the implementation, and these
// are XLA's answers.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

namespace nxl::host {

// x / 0 is -1 (all bits set), MIN / -1 is MIN; truncates.
struct IntegerDivide {
  template <typename T>
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>) {
      if (b == -1 && a == std::numeric_limits<T>::min()) return a;
    }
    return static_cast<T>(a / b);
  }
};

// x % 0 is x, MIN % -1 is 0; the sign is the dividend's.
struct IntegerRemainder {
  template <typename T>
  static T apply(T a, T b) {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
    }
    return static_cast<T>(a % b);
  }
};

// Wraps on overflow. A negative exponent gives 0, except for the bases 1 and -1; 0 to a negative power gives 0.
struct IntegerPower {
  template <typename T>
  static T apply(T base, T exponent) {
    if constexpr (std::is_signed_v<T>) {
      if (exponent < 0) {
        if (base == 1) return 1;
        if (base == -1) return (exponent & 1) != 0 ? T(-1) : T(1);
        return 0;
      }
    }
    uint64_t factor = static_cast<uint64_t>(base), result = 1;
    for (auto rest = static_cast<std::make_unsigned_t<T>>(exponent); rest != 0; rest >>= 1) {
      if ((rest & 1) != 0) result *= factor;
      factor *= factor;
    }
    return static_cast<T>(result);
  }
};

// A shift by the width or more (or by a negative amount) leaves no bit of the operand: 0, or copies of the sign.
template <typename T>
constexpr bool shifts_out(T amount) {
  return static_cast<std::make_unsigned_t<T>>(amount) >= sizeof(T) * 8;
}

struct ShiftLeft {
  template <typename T>
  static T apply(T a, T amount) {
    if (shifts_out(amount)) return 0;
    return static_cast<T>(static_cast<uint64_t>(a) << amount);
  }
};

struct ShiftRightLogical {
  template <typename T>
  static T apply(T a, T amount) {
    if (shifts_out(amount)) return 0;
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) >> amount);
  }
};

struct ShiftRightArithmetic {
  template <typename T>
  static T apply(T a, T amount) {
    using Signed = std::make_signed_t<T>;
    const auto value = static_cast<Signed>(a);
    if (shifts_out(amount)) return static_cast<T>(value < 0 ? Signed(-1) : Signed(0));
    return static_cast<T>(value >> amount);
  }
};

}  // namespace nxl::host
