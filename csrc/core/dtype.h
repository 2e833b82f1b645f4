// SPDX-License-Identifier: Apache-2.0
// Element types as the program files name them; the torch side and the kernels map to and from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/api.h"

namespace nxl {

enum class DType : uint8_t {
  kBool,
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kBFloat16,
  kFloat16,
  kFloat32,
  kFloat64,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kComplex64,
  kComplex128,
};

// Names: bool i8 u8 i16 u16 i32 u32 i64 u64 bf16 f16 f32 f64 f8e4m3fn f8e5m2 c64 c128.
NXL_API std::optional<DType> dtype_from_name(std::string_view name);
NXL_API const char* dtype_name(DType dtype);
NXL_API size_t dtype_size(DType dtype);  // bytes per element

}  // namespace nxl
