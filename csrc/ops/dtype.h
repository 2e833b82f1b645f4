// SPDX-License-Identifier: Apache-2.0
// Element types of a NEFF as torch names them.
#pragma once

#include <c10/core/ScalarType.h>

#include "core/dtype.h"

namespace nxl::ops {

inline c10::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return c10::ScalarType::Bool;
    case DType::kInt8:
      return c10::ScalarType::Char;
    case DType::kUInt8:
      return c10::ScalarType::Byte;
    case DType::kInt16:
      return c10::ScalarType::Short;
    case DType::kUInt16:
      return c10::ScalarType::UInt16;
    case DType::kInt32:
      return c10::ScalarType::Int;
    case DType::kUInt32:
      return c10::ScalarType::UInt32;
    case DType::kInt64:
      return c10::ScalarType::Long;
    case DType::kUInt64:
      return c10::ScalarType::UInt64;
    case DType::kBFloat16:
      return c10::ScalarType::BFloat16;
    case DType::kFloat16:
      return c10::ScalarType::Half;
    case DType::kFloat32:
      return c10::ScalarType::Float;
    case DType::kFloat64:
      return c10::ScalarType::Double;
    case DType::kFloat8E4M3FN:
      return c10::ScalarType::Float8_e4m3fn;
    case DType::kFloat8E5M2:
      return c10::ScalarType::Float8_e5m2;
    case DType::kComplex64:
      return c10::ScalarType::ComplexFloat;
    case DType::kComplex128:
      return c10::ScalarType::ComplexDouble;
  }
  return c10::ScalarType::Undefined;
}

}  // namespace nxl::ops
