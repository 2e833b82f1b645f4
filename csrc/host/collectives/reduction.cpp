// SPDX-License-Identifier: Apache-2.0
// Reductions, in blocks that stay in the first-level cache.
#include "host/collectives/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "host/combine_functions.h"

namespace nxl::host {
namespace {

constexpr size_t kBlock = 1024;  // elements

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

float widen(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// To nearest, ties to even; a NaN stays one.
void narrow(float x, BFloat16& out) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  out.bits = static_cast<uint16_t>(x != x ? (bits >> 16 | 0x40) : rounded >> 16);
}

float widen(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = x.bits & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // The exponent moves from bias 15 to 127 by one multiplication, which also makes subnormals normal.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

void narrow(float x, Float16& out) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    out.bits = sign | 0x7e00;
  } else if (magnitude >= 0x477ff000) {  // 65520 and up rounds to infinity
    out.bits = sign | 0x7c00;
  } else if (magnitude < 0x38800000) {  // below the least normal number: adding 0.5 aligns the bits and rounds
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    out.bits = sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(aligned) - 0x3f000000);
  } else {
    const uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
    out.bits = sign | static_cast<uint16_t>(rounded >> 13);
  }
}

template <typename T>
T widen(T x) {
  return x;
}
template <typename T>
void narrow(T x, T& out) {
  out = x;
}

template <typename T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<BFloat16> {
  using type = float;
};
template <>
struct AccumulatorOf<Float16> {
  using type = float;
};

template <typename T, typename Kind>
void reduce(std::byte* out, const std::byte* const* sources, size_t count, size_t elements) {
  using Accumulator = typename AccumulatorOf<T>::type;
  Accumulator sums[kBlock];
  for (size_t begin = 0; begin < elements; begin += kBlock) {
    const size_t n = std::min(kBlock, elements - begin);
    const auto* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (size_t i = 0; i < n; ++i) sums[i] = widen(first[i]);
    for (size_t s = 1; s < count; ++s) {
      const auto* source = reinterpret_cast<const T*>(sources[s]) + begin;
      for (size_t i = 0; i < n; ++i) sums[i] = Kind::apply(sums[i], static_cast<Accumulator>(widen(source[i])));
    }
    T* target = reinterpret_cast<T*>(out) + begin;
    for (size_t i = 0; i < n; ++i) narrow(sums[i], target[i]);
  }
}

template <typename T>
Reduction arithmetic_kind(std::string_view kind) {
  if (kind == "add") return reduce<T, CombineAdd>;
  if (kind == "multiply") return reduce<T, CombineMultiply>;
  if (kind == "maximum") return reduce<T, CombineMaximum>;
  if (kind == "minimum") return reduce<T, CombineMinimum>;
  return nullptr;
}

template <typename T>
Reduction bitwise_kind(std::string_view kind) {
  if (kind == "and") return reduce<T, CombineAnd>;
  if (kind == "or") return reduce<T, CombineOr>;
  if (kind == "xor") return reduce<T, CombineXor>;
  return nullptr;
}

template <typename T>
Reduction integer_kind(std::string_view kind) {
  const Reduction found = arithmetic_kind<T>(kind);
  return found != nullptr ? found : bitwise_kind<T>(kind);
}

}  // namespace

Reduction find_reduction(DType dtype, std::string_view kind) {
  switch (dtype) {
    case DType::kBool:
      return bitwise_kind<uint8_t>(kind);
    case DType::kInt8:
      return integer_kind<int8_t>(kind);
    case DType::kUInt8:
      return integer_kind<uint8_t>(kind);
    case DType::kInt16:
      return integer_kind<int16_t>(kind);
    case DType::kUInt16:
      return integer_kind<uint16_t>(kind);
    case DType::kInt32:
      return integer_kind<int32_t>(kind);
    case DType::kUInt32:
      return integer_kind<uint32_t>(kind);
    case DType::kInt64:
      return integer_kind<int64_t>(kind);
    case DType::kUInt64:
      return integer_kind<uint64_t>(kind);
    case DType::kBFloat16:
      return arithmetic_kind<BFloat16>(kind);
    case DType::kFloat16:
      return arithmetic_kind<Float16>(kind);
    case DType::kFloat32:
      return arithmetic_kind<float>(kind);
    case DType::kFloat64:
      return arithmetic_kind<double>(kind);
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kComplex64:
    case DType::kComplex128:
      break;
  }
  return nullptr;
}

}  // namespace nxl::host
