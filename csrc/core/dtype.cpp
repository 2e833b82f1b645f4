// SPDX-License-Identifier: Apache-2.0
// Names and sizes of element types.
#include "core/dtype.h"

#include <array>

namespace nxl {
namespace {

struct Row {
  const char* name;
  uint8_t bytes;
};

// In the order of the enumeration.
constexpr std::array<Row, 17> kRows = {{{"bool", 1},
                                        {"i8", 1},
                                        {"u8", 1},
                                        {"i16", 2},
                                        {"u16", 2},
                                        {"i32", 4},
                                        {"u32", 4},
                                        {"i64", 8},
                                        {"u64", 8},
                                        {"bf16", 2},
                                        {"f16", 2},
                                        {"f32", 4},
                                        {"f64", 8},
                                        {"f8e4m3fn", 1},
                                        {"f8e5m2", 1},
                                        {"c64", 8},
                                        {"c128", 16}}};
static_assert(kRows.size() == static_cast<size_t>(DType::kComplex128) + 1);

}  // namespace

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (name == kRows[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

const char* dtype_name(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

size_t dtype_size(DType dtype) { return kRows[static_cast<size_t>(dtype)].bytes; }

}  // namespace nxl
