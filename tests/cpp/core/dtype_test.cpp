// SPDX-License-Identifier: Apache-2.0
// Names and sizes of dtypes: both ways, every one.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace nxl {
namespace {

TEST(DType, EveryNameHasItsSizeAndComesBack) {
  const std::map<std::string, size_t> expected = {{"bool", 1}, {"i8", 1},   {"u8", 1},  {"i16", 2},      {"u16", 2},
                                                  {"i32", 4},  {"u32", 4},  {"i64", 8}, {"u64", 8},      {"bf16", 2},
                                                  {"f16", 2},  {"f32", 4},  {"f64", 8}, {"f8e4m3fn", 1}, {"f8e5m2", 1},
                                                  {"c64", 8},  {"c128", 16}};
  for (const auto& [name, bytes] : expected) {
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(dtype_size(*dtype), bytes) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
  }
  EXPECT_EQ(dtype_from_name("float32"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

}  // namespace
}  // namespace nxl
