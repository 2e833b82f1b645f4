// SPDX-License-Identifier: Apache-2.0
// copy, convert, iota, compare, select, clamp.
#include <cmath>
#include <limits>

#include "program_builder.h"

namespace nxl::host::testing {
namespace {

const std::vector<at::ScalarType> kAll = {at::kBool, at::kChar,   at::kByte,   at::kShort,        at::kUInt16,
                                          at::kInt,  at::kUInt32, at::kLong,   at::kUInt64,       at::kBFloat16,
                                          at::kHalf, at::kFloat,  at::kDouble, at::kComplexFloat, at::kComplexDouble};

TEST(Copy, EveryTypeAndLayout) {
  for (at::ScalarType dtype : kAll) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {0}, {7}, {3, 4, 5}, {90, 100}}) {
      const at::Tensor x = sample(shape, dtype);
      at::Tensor y = at::empty_like(x), odd = in_odd_layout(at::zeros_like(x));
      run_step("copy", {in_odd_layout(x)}, {y});
      expect_close(y, x);
      run_step("copy", {x}, {odd});
      expect_close(odd, x);
    }
  }
  at::Tensor y = at::empty({4, 3});
  const at::Tensor row = sample({3}, at::kFloat);
  run_step("copy", {row.expand({4, 3})}, {y});
  expect_close(y, row.expand({4, 3}));
  expect_refused("copy", {row}, {at::empty({3}, at::kInt)}, "{}", ErrorKind::kInvalid, "dtype");
}

TEST(Convert, EveryPairOfTypes) {
  for (at::ScalarType from : kAll) {
    for (at::ScalarType to : kAll) {
      SCOPED_TRACE(nxl::detail::concat(c10::toString(from), " to ", c10::toString(to)));
      // Small numbers >= 0, so that every type holds them.
      const at::Tensor x = (at::rand({6, 7}) * 100).to(from);
      at::Tensor y = at::empty({6, 7}, to), odd = in_odd_layout(at::zeros({6, 7}, to));
      run_step("convert", {x}, {y});
      expect_close(y, x.to(to));
      run_step("convert", {in_odd_layout(x)}, {odd});
      expect_close(odd, x.to(to));
    }
  }
}

TEST(Convert, FloatToIntegerTruncatesAndSaturates) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::tensor({1.9f, -1.9f, 3e9f, -3e9f, inf, -inf, std::nanf(""), 1e20f});
  at::Tensor y = at::empty({8}, at::kInt);
  run_step("convert", {x}, {y});
  const int32_t high = std::numeric_limits<int32_t>::max(), low = std::numeric_limits<int32_t>::min();
  expect_close(y, at::tensor({1, -1, high, low, high, low, 0, high}, at::kInt));
  at::Tensor bytes = at::empty({8}, at::kByte);
  run_step("convert", {x}, {bytes});
  expect_close(bytes, at::tensor({1, 0, 255, 0, 255, 0, 0, 255}, at::kByte));
  at::Tensor flags = at::empty({8}, at::kBool);
  run_step("convert", {x}, {flags});
  expect_close(flags, at::ones({8}, at::kBool));
}

TEST(Convert, Float8) {
  const at::Tensor x = sample({40}, at::kFloat);
  for (at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    at::Tensor narrow = at::empty({40}, dtype), back = at::empty({40}), whole = at::empty({40}, at::kInt);
    run_step("convert", {x}, {narrow});
    run_step("convert", {narrow}, {back});
    expect_close(back, x.to(dtype).to(at::kFloat));
    run_step("convert", {narrow}, {whole});
    expect_close(whole, back.to(at::kInt));
  }
}

TEST(Iota, EveryDimension) {
  for (at::ScalarType dtype : kAll) {
    if (dtype == at::kBool) continue;
    for (int64_t dim = 0; dim < 3; ++dim) {
      std::vector<int64_t> shape{1, 1, 1};
      shape[static_cast<size_t>(dim)] = -1;
      const at::Tensor x = at::empty({3, 4, 5}, dtype);
      const at::Tensor expected = at::arange(x.size(dim)).view(shape).expand({3, 4, 5}).to(dtype).contiguous();
      at::Tensor y = at::empty({3, 4, 5}, dtype), odd = in_odd_layout(y);
      run_step("iota", {}, {y}, nxl::detail::concat("{\"dim\":", dim, "}"));
      expect_close(y, expected);
      run_step("iota", {}, {odd}, nxl::detail::concat("{\"dim\":", dim, "}"));
      expect_close(odd, expected);
    }
  }
  expect_refused("iota", {}, {at::empty({3})}, R"({"dim":1})", ErrorKind::kInvalid, "`dim` is 1");
}

TEST(Compare, EveryDirectionAndType) {
  using Oracle = at::Tensor (*)(const at::Tensor&, const at::Tensor&);
  const std::pair<const char*, Oracle> directions[] = {
      {"EQ", [](auto& a, auto& b) { return a == b; }}, {"NE", [](auto& a, auto& b) { return a != b; }},
      {"GE", [](auto& a, auto& b) { return a >= b; }}, {"GT", [](auto& a, auto& b) { return a > b; }},
      {"LE", [](auto& a, auto& b) { return a <= b; }}, {"LT", [](auto& a, auto& b) { return a < b; }}};
  for (at::ScalarType dtype : kAll) {
    for (const auto& [direction, oracle] : directions) {
      const bool ordered = !c10::isComplexType(dtype);
      const std::string attributes = nxl::detail::concat("{\"direction\":\"", direction, "\"}");
      const at::Tensor a = sample({4, 30}, dtype, 2, true);
      at::Tensor b = sample({4, 30}, dtype, 2, true);
      b.slice(0, 0, 1).copy_(a.slice(0, 0, 1));
      at::Tensor y = at::empty({4, 30}, at::kBool);
      if (!ordered && std::string(direction).find_first_of("GL") != std::string::npos) {
        expect_refused("compare", {a, b}, {y}, attributes, ErrorKind::kUnsupported, "EQ and NE");
        continue;
      }
      const bool exact = c10::isIntegralType(dtype, true);
      const at::Tensor expected = exact ? oracle(a.to(at::kLong), b.to(at::kLong)) : oracle(a, b);
      run_step("compare", {a, b}, {y}, attributes);
      expect_close(y, expected, 0, 0, direction);
      run_step("compare", {in_odd_layout(a), in_odd_layout(b)}, {y}, attributes);
      expect_close(y, expected, 0, 0, direction);
    }
  }
  const at::Tensor big = at::full({2}, -1, at::kLong).to(at::kUInt64), one = at::ones({2}, at::kLong).to(at::kUInt64);
  at::Tensor y = at::empty({2}, at::kBool);
  run_step("compare", {big, one}, {y}, R"({"direction":"GT","type":"UNSIGNED"})");
  EXPECT_TRUE(y.all().item<bool>());
}

TEST(Compare, TotalOrder) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor sorted = at::tensor({-std::nanf(""), -inf, -1.0f, -0.0f, 0.0f, 1.0f, inf, std::nanf("")});
  at::Tensor y = at::empty({7}, at::kBool);
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    // A vectorised conversion to bf16 may turn a NaN's sign, so that type is made of its bits.
    const at::Tensor x = dtype == at::kBFloat16
                             ? sorted.view(at::kInt).bitwise_right_shift(16).to(at::kShort).view(at::kBFloat16)
                             : sorted.to(dtype);
    run_step("compare", {x.slice(0, 0, 7), x.slice(0, 1, 8)}, {y}, R"({"direction":"LT","type":"TOTALORDER"})");
    EXPECT_TRUE(y.all().item<bool>()) << y;
    run_step("compare", {x.slice(0, 0, 7), x.slice(0, 0, 7)}, {y}, R"({"direction":"EQ","type":"TOTALORDER"})");
    EXPECT_TRUE(y.all().item<bool>()) << y;
  }
}

TEST(Select, EveryType) {
  for (at::ScalarType dtype : kAll) {
    const at::Tensor pred = sample({5, 6}, at::kBool), a = sample({5, 6}, dtype), b = sample({5, 6}, dtype);
    at::Tensor y = at::empty_like(a);
    const auto plain = [](const at::Tensor& t) {
      return c10::isIntegralType(t.scalar_type(), true) ? t.to(at::kLong) : t;
    };
    const at::Tensor expected = at::where(pred, plain(a), plain(b)).to(dtype);
    run_step("select", {pred, a, b}, {y});
    expect_close(y, expected, 0, 0, c10::toString(dtype));
    run_step("select", {in_odd_layout(pred), in_odd_layout(a), b}, {y});
    expect_close(y, expected, 0, 0, c10::toString(dtype));
    run_step("select", {at::scalar_tensor(true, at::kBool), a, b}, {y});
    expect_close(y, a);
  }
  expect_refused("select", {at::ones({2}), at::ones({2}), at::ones({2})}, {at::empty({2})}, "{}", ErrorKind::kInvalid,
                 "pred");
}

TEST(Clamp, ScalarAndFullBounds) {
  for (at::ScalarType dtype : kAll) {
    if (c10::isComplexType(dtype) || dtype == at::kBool) continue;
    const at::Tensor x = sample({5, 6}, dtype, 4, true);
    const at::Tensor low = at::full({}, 1, at::kLong).to(dtype), high = at::full({}, 3, at::kLong).to(dtype);
    const auto plain = [](const at::Tensor& t) {
      return c10::isIntegralType(t.scalar_type(), true) ? t.to(at::kLong) : t;
    };
    const at::Tensor expected = at::clamp(plain(x), 1, 3).to(dtype);
    at::Tensor y = at::empty_like(x);
    run_step("clamp", {low, x, high}, {y});
    expect_close(y, expected, 0, 0, c10::toString(dtype));
    run_step("clamp", {low.expand({5, 6}), in_odd_layout(x), high.expand({5, 6})}, {y});
    expect_close(y, expected, 0, 0, c10::toString(dtype));
  }
}

}  // namespace
}  // namespace nxl::host::testing
