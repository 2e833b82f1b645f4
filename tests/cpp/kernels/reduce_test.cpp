// SPDX-License-Identifier: Apache-2.0
// reduce and argreduce against ATen in wide types.
#include "program_builder.h"

namespace nxl::host::testing {
namespace {

std::string attributes(const std::vector<int64_t>& dims, const std::string& kind) {
  return nxl::detail::concat("{\"dims\":[", c10::Join(",", dims), "],\"kind\":\"", kind, "\"}");
}

at::Tensor reduced(const at::Tensor& x, const std::vector<int64_t>& dims, const std::string& kind) {
  if (dims.empty()) return x.clone();
  if (kind == "add") return x.sum(dims);
  if (kind == "maximum") return x.amax(dims);
  if (kind == "minimum") return x.amin(dims);
  at::Tensor y = x;
  std::vector<int64_t> sorted = dims;
  std::sort(sorted.rbegin(), sorted.rend());
  for (int64_t d : sorted) y = y.prod(d);
  return y;
}

// With the init as a constant (ATen's kernel may serve) and as an argument (the loop serves).
void check(const at::Tensor& x, const std::vector<int64_t>& dims, const std::string& kind, double init,
           const at::Tensor& expected, double t) {
  for (const bool constant : {true, false}) {
    for (const at::Tensor& layout : {x, in_odd_layout(x)}) {
      const at::Tensor start = at::full({}, init, at::kDouble).to(x.scalar_type());
      at::Tensor y = in_odd_layout(at::zeros_like(expected));
      ProgramBuilder builder;
      const uint32_t in = builder.input(layout), first = constant ? builder.constant(start) : builder.input(start);
      const Status status = builder.step("reduce", {in, first}, {builder.output(y)}, attributes(dims, kind)).run();
      ASSERT_TRUE(status.is_ok()) << status.message;
      expect_close(y, expected, t, t, kind + (constant ? " constant init" : " init"));
    }
  }
}

TEST(Reduce, Floats) {
  const double inf = std::numeric_limits<double>::infinity();
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const double t = dtype == at::kBFloat16 ? 1.0 / 128 : dtype == at::kHalf ? 1.0 / 1024 : 1e-4;
    const at::Tensor x = sample({4, 5, 6}, dtype, 1);
    for (const auto& dims : std::vector<std::vector<int64_t>>{{}, {2}, {0}, {1}, {0, 2}, {2, 1, 0}}) {
      SCOPED_TRACE(nxl::detail::concat(c10::toString(dtype), " ", dims.size()));
      const at::Tensor wide = x.to(at::kDouble);
      check(x, dims, "add", 0, reduced(wide, dims, "add").to(dtype), t);
      check(x, dims, "add", 2, (reduced(wide, dims, "add") + 2).to(dtype), t);
      check(x, dims, "multiply", 1, reduced(wide, dims, "multiply").to(dtype), t);
      check(x, dims, "maximum", -inf, reduced(wide, dims, "maximum").to(dtype), 0);
      check(x, dims, "maximum", 1, reduced(wide, dims, "maximum").clamp_min(1).to(dtype), 0);
      check(x, dims, "minimum", inf, reduced(wide, dims, "minimum").to(dtype), 0);
    }
  }
}

TEST(Reduce, NarrowSumsAccumulateInF32) {
  const at::Tensor x = at::ones({4096}, at::kBFloat16);
  check(x, {0}, "add", 0, at::full({}, 4096, at::kBFloat16), 0);
}

TEST(Reduce, NanPassesThroughMaximumAndMinimum) {
  at::Tensor x = sample({3, 4}, at::kFloat);
  x[1][2] = std::nan("");
  for (const char* kind : {"maximum", "minimum"}) {
    const double init = std::string(kind) == "maximum" ? -std::numeric_limits<double>::infinity()
                                                       : std::numeric_limits<double>::infinity();
    check(x, {1}, kind, init, reduced(x, {1}, kind), 0);
    check(x, {0}, kind, 0,
          std::string(kind) == "maximum" ? reduced(x, {0}, kind).clamp_min(0) : reduced(x, {0}, kind).clamp_max(0), 0);
  }
}

TEST(Reduce, EmptyDimensionsGiveInit) {
  check(at::empty({3, 0}), {1}, "add", 5, at::full({3}, 5.0), 0);
  check(at::empty({3, 0}), {1}, "maximum", -1, at::full({3}, -1.0), 0);
  check(at::empty({0, 3}), {1}, "add", 0, at::empty({0}), 0);
}

TEST(Reduce, IntegersAndBools) {
  for (at::ScalarType dtype :
       {at::kChar, at::kByte, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong, at::kUInt64}) {
    const at::Tensor x = sample({4, 6}, dtype), wide = x.to(at::kLong);
    check(x, {0}, "add", 3, (wide.sum(0) + 3).to(dtype), 0);
    check(x, {1}, "multiply", 1, wide.prod(1).to(dtype), 0);
    check(x, {1}, "maximum", 0, wide.amax(1).clamp_min(0).to(dtype), 0);
    check(x, {0}, "minimum", 90, wide.amin(0).clamp_max(90).to(dtype), 0);
    at::Tensor all = wide.select(1, 0), any = wide.select(1, 0), odd = wide.select(1, 0);
    for (int64_t i = 1; i < 6; ++i) {
      all = all & wide.select(1, i);
      any = any | wide.select(1, i);
      odd = odd ^ wide.select(1, i);
    }
    check(x, {1}, "or", 0, any.to(dtype), 0);
    check(x, {1}, "xor", 0, odd.to(dtype), 0);
    check(x, {1}, "and", 127, (all & 127).to(dtype), 0);
  }
  const at::Tensor flags = sample({5, 4}, at::kBool);
  check(flags, {1}, "or", 0, flags.any(1), 0);
  check(flags, {1}, "and", 1, flags.all(1), 0);
  check(flags, {1}, "add", 0, flags.any(1), 0);
}

TEST(Reduce, RefusesWhatDoesNotFit) {
  const at::Tensor x = at::ones({3, 4}), zero = at::zeros({});
  expect_refused("reduce", {x, zero}, {at::empty({4})}, attributes({1}, "add"), ErrorKind::kInvalid, "shape");
  expect_refused("reduce", {x, zero}, {at::empty({3})}, attributes({2}, "add"), ErrorKind::kInvalid, "dimension 2");
  expect_refused("reduce", {x, zero}, {at::empty({3})}, attributes({1}, "mean"), ErrorKind::kInvalid, "`mean`");
  expect_refused("reduce", {x, zero}, {at::empty({3})}, attributes({1}, "xor"), ErrorKind::kUnsupported, "Float");
  expect_refused("reduce", {x, at::zeros({1})}, {at::empty({3})}, attributes({1}, "add"), ErrorKind::kInvalid,
                 "scalar");
  expect_refused("reduce", {x, zero}, {at::empty({3})}, R"({"dims":[1]})", ErrorKind::kInvalid, "kind");
}

TEST(ArgReduce, FirstOfEqualsAndNanWins) {
  const at::Tensor x = at::tensor({1, 3, 3, 2, 0, 0, 5, 1}, at::kFloat).view({2, 4});
  at::Tensor value = at::empty({2}), index = at::empty({2}, at::kLong);
  run_step("argreduce", {x}, {value, index}, R"({"dim":1,"kind":"max"})");
  expect_close(value, at::tensor({3.0f, 5.0f}));
  expect_close(index, at::tensor({1, 2}, at::kLong));
  run_step("argreduce", {x}, {value, index}, R"({"dim":1,"kind":"min"})");
  expect_close(index, at::tensor({0, 0}, at::kLong));
  at::Tensor with_nan = x.clone();
  with_nan[0][3] = std::nan("");
  at::Tensor narrow = at::empty({2}, at::kInt);
  for (const char* kind : {"max", "min"}) {
    run_step("argreduce", {with_nan}, {value, narrow}, nxl::detail::concat(R"({"dim":1,"kind":")", kind, "\"}"));
    EXPECT_EQ(narrow[0].item<int>(), 3);
    EXPECT_TRUE(std::isnan(value[0].item<float>()));
  }
}

TEST(ArgReduce, TypesAndLayouts) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kInt, at::kByte, at::kLong}) {
    const at::Tensor x = sample({3, 50, 4}, dtype);
    const auto [value, index] = x.max(1);
    at::Tensor v = at::empty_like(value), i = at::empty_like(index);
    run_step("argreduce", {in_odd_layout(x)}, {v, i}, R"({"dim":1,"kind":"max"})");
    expect_close(v, value);
    expect_close(x.gather(1, i.unsqueeze(1)).squeeze(1), value);
  }
  expect_refused("argreduce", {at::empty({3, 0})}, {at::empty({3}), at::empty({3}, at::kInt)},
                 R"({"dim":1,"kind":"max"})", ErrorKind::kInvalid, "no elements");
  expect_refused("argreduce", {at::ones({3, 2})}, {at::empty({3}), at::empty({3}, at::kShort)},
                 R"({"dim":1,"kind":"max"})", ErrorKind::kUnsupported, "i32 or i64");
}

}  // namespace
}  // namespace nxl::host::testing
