// SPDX-License-Identifier: Apache-2.0
// dynamic_slice, dynamic_update_slice, reverse.
#include "program_builder.h"

namespace nxl::host::testing {
namespace {

at::Tensor index(int64_t value, at::ScalarType dtype = at::kInt) { return at::scalar_tensor(value, dtype); }

TEST(DynamicSlice, ClampsItsStarts) {
  const at::Tensor x = sample({6, 5}, at::kBFloat16);
  for (int64_t start : {-3, 0, 2, 4, 100}) {
    for (at::ScalarType dtype : {at::kChar, at::kInt, at::kLong}) {
      const int64_t row = std::clamp<int64_t>(start, 0, 4);
      at::Tensor y = at::empty({2, 3}, at::kBFloat16);
      run_step("dynamic_slice", {x, index(start, dtype), index(1, dtype)}, {y});
      expect_close(y, x.slice(0, row, row + 2).slice(1, 1, 4));
      at::Tensor odd = in_odd_layout(y);
      run_step("dynamic_slice", {in_odd_layout(x), index(start, dtype), index(1, dtype)}, {odd});
      expect_close(odd, y);
    }
  }
  at::Tensor y = at::empty({2, 3}, at::kBFloat16);
  run_step("dynamic_slice", {x, at::full({}, -1, at::kLong).to(at::kUInt64), index(0)}, {y});
  expect_close(y, x.slice(0, 4, 6).slice(1, 0, 3), 0, 0, "the largest u64");
}

TEST(DynamicUpdateSlice, WritesOnlyItsWindow) {
  for (at::ScalarType dtype : {at::kBool, at::kShort, at::kFloat, at::kComplexDouble}) {
    for (int64_t start : {-3, 0, 2, 100}) {
      at::Tensor target = sample({2, 6, 4}, dtype), expected = target.clone();
      const at::Tensor update = sample({2, 1, 4}, dtype);
      const int64_t row = std::clamp<int64_t>(start, 0, 5);
      expected.slice(1, row, row + 1).copy_(update);
      at::Tensor odd = in_odd_layout(target);
      run_in_place("dynamic_update_slice", {update, index(0), index(start), index(0)}, target);
      expect_close(target, expected);
      run_in_place("dynamic_update_slice", {in_odd_layout(update), index(0), index(start), index(0)}, odd);
      expect_close(odd, expected);
    }
  }
  at::Tensor scalar = at::zeros({});
  run_in_place("dynamic_update_slice", {at::ones({})}, scalar);
  EXPECT_EQ(scalar.item<float>(), 1);
}

TEST(Slices, RefuseWhatDoesNotFit) {
  const at::Tensor x = at::ones({4, 4});
  expect_refused("dynamic_slice", {x, index(0)}, {at::empty({2, 2})}, "{}", ErrorKind::kInvalid, "takes 3 inputs");
  expect_refused("dynamic_slice", {x, index(0), index(0)}, {at::empty({2, 5})}, "{}", ErrorKind::kInvalid,
                 "5 elements");
  expect_refused("dynamic_slice", {x, index(0), at::ones({2}, at::kInt)}, {at::empty({2, 2})}, "{}",
                 ErrorKind::kInvalid, "scalar");
  expect_refused("dynamic_slice", {x, index(0), at::ones({})}, {at::empty({2, 2})}, "{}", ErrorKind::kInvalid,
                 "integer type");
  expect_refused("dynamic_update_slice", {at::ones({5, 1}), index(0), index(0)}, {x}, "{}", ErrorKind::kInvalid,
                 "5 elements");
  expect_refused("dynamic_update_slice", {at::ones({1}), index(0), index(0)}, {x}, "{}", ErrorKind::kInvalid, "rank");
  expect_refused("reverse", {x}, {at::empty({4, 4})}, R"({"dims":[2]})", ErrorKind::kInvalid, "names dimension 2");
}

TEST(Reverse, FlipsItsDimensions) {
  for (const auto& dims : std::vector<std::vector<int64_t>>{{}, {0}, {2}, {0, 2}, {2, 1, 0}}) {
    const at::Tensor x = sample({3, 4, 5}, at::kShort);
    const std::string attributes = nxl::detail::concat("{\"dims\":[", c10::Join(",", dims), "]}");
    at::Tensor y = at::empty_like(x), odd = in_odd_layout(x);
    run_step("reverse", {x}, {y}, attributes);
    expect_close(y, x.flip(dims));
    run_step("reverse", {in_odd_layout(x)}, {odd}, attributes);
    expect_close(odd, y);
  }
  at::Tensor empty = at::empty({0, 3});
  run_step("reverse", {at::empty({0, 3})}, {empty}, R"({"dims":[0]})");
}

}  // namespace
}  // namespace nxl::host::testing
