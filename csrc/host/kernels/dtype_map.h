// SPDX-License-Identifier: Apache-2.0
// Element types of a program as ATen's, lists of C++ types, and a visitor over such a list.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/dtype.h"
#include "core/error.h"

namespace nxl::host {

inline at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return at::kBool;
    case DType::kInt8:
      return at::kChar;
    case DType::kUInt8:
      return at::kByte;
    case DType::kInt16:
      return at::kShort;
    case DType::kUInt16:
      return at::kUInt16;
    case DType::kInt32:
      return at::kInt;
    case DType::kUInt32:
      return at::kUInt32;
    case DType::kInt64:
      return at::kLong;
    case DType::kUInt64:
      return at::kUInt64;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat8E4M3FN:
      return at::kFloat8_e4m3fn;
    case DType::kFloat8E5M2:
      return at::kFloat8_e5m2;
    case DType::kComplex64:
      return at::kComplexFloat;
    case DType::kComplex128:
      return at::kComplexDouble;
  }
  throw_error(ErrorKind::kInternal, "dtype out of range");
}

template <typename... Ts>
struct Types {};

template <typename A, typename B>
struct ConcatTypes;
template <typename... As, typename... Bs>
struct ConcatTypes<Types<As...>, Types<Bs...>> {
  using type = Types<As..., Bs...>;
};
template <typename A, typename B>
using Concat = typename ConcatTypes<A, B>::type;

using SignedTypes = Types<int8_t, int16_t, int32_t, int64_t>;
using UnsignedTypes = Types<uint8_t, uint16_t, uint32_t, uint64_t>;
using IntegerTypes = Concat<SignedTypes, UnsignedTypes>;
using FloatTypes = Types<float, double, c10::BFloat16, c10::Half>;
using Float8Types = Types<c10::Float8_e4m3fn, c10::Float8_e5m2>;
using AllFloatTypes = Concat<FloatTypes, Float8Types>;
using ComplexTypes = Types<c10::complex<float>, c10::complex<double>>;
using BoolType = Types<bool>;
using RealTypes = Concat<Concat<IntegerTypes, BoolType>, FloatTypes>;  // ordered types, float8 apart
using NumberTypes = Concat<RealTypes, ComplexTypes>;

// Calls visit.template operator()<T>() for the T of `dtype`; false when the list has no such type.
template <typename Visit, typename... Ts>
bool visit_type(Types<Ts...>, at::ScalarType dtype, Visit&& visit) {
  return ((dtype == c10::CppTypeToScalarType<Ts>::value ? (visit.template operator()<Ts>(), true) : false) || ...);
}

// The type that sums and products of T are held in: f32 for the narrow floats.
template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<c10::BFloat16> {
  using type = float;
};
template <>
struct Accumulator<c10::Half> {
  using type = float;
};
template <>
struct Accumulator<c10::Float8_e4m3fn> {
  using type = float;
};
template <>
struct Accumulator<c10::Float8_e5m2> {
  using type = float;
};
template <typename T>
using accumulator_t = typename Accumulator<T>::type;

inline bool is_float(at::ScalarType dtype) { return c10::isFloatingType(dtype) && !c10::isFloat8Type(dtype); }
inline bool is_unsigned_wide(at::ScalarType dtype) {
  return dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64;
}

// The signed integer type of the same width: two's complement makes add, subtract, multiply, negate and bit operations
// the same on both, and ATen has those kernels for signed types only.
inline at::ScalarType signed_twin(at::ScalarType dtype) {
  switch (dtype) {
    case at::kUInt16:
      return at::kShort;
    case at::kUInt32:
      return at::kInt;
    case at::kUInt64:
      return at::kLong;
    default:
      return dtype;
  }
}

}  // namespace nxl::host
