// SPDX-License-Identifier: Apache-2.0
// attention against CPU eager's scaled_dot_product_attention; the row loops one instruction set after the other.
#include <cmath>
#include <limits>

#include "host/kernels/row_kernels.h"
#include "program_builder.h"

namespace nxl::host::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  int64_t batch, groups, rows, columns, width, value_width;
};

struct Operands {
  at::Tensor query, key, value, scale;
  Operands(const Case& c, at::ScalarType dtype)
      : query(sample({c.batch, c.groups, c.rows, c.width}, dtype, 1)),
        key(sample({c.batch, c.columns, c.width}, dtype, 1)),
        value(sample({c.batch, c.columns, c.value_width}, dtype, 1)),
        scale(at::scalar_tensor(0.25, at::kFloat)) {}
  at::Tensor empty_result() const {
    return at::empty({query.size(0), query.size(1), query.size(2), value.size(2)}, query.scalar_type());
  }
  // What CPU eager makes of the same operands. `mask` is null or [batch, groups, rows, columns].
  at::Tensor eager(const at::Tensor& mask) const {
    const auto groups = query.size(1);
    const at::Tensor keys = key.unsqueeze(1).expand({-1, groups, -1, -1});
    const at::Tensor values = value.unsqueeze(1).expand({-1, groups, -1, -1});
    std::optional<at::Tensor> given;
    if (mask.defined()) given = mask.scalar_type() == at::kBool ? mask : mask.to(query.scalar_type());
    return at::scaled_dot_product_attention(query, keys, values, given, 0.0, false, scale.item<double>());
  }
};

double tolerance(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 1.0 / 64 : dtype == at::kHalf ? 1.0 / 512 : 2e-5;
}

at::Tensor run(const Operands& operands, const at::Tensor& mask, int threads = 2) {
  at::Tensor y = operands.empty_result();
  std::vector<at::Tensor> inputs{operands.query, operands.key, operands.value, operands.scale};
  if (mask.defined()) inputs.push_back(mask);
  run_step("attention", inputs, {y}, "{}", threads);
  return y;
}

at::Tensor causal(int64_t rows, int64_t columns, int64_t first) {
  return at::arange(columns).unsqueeze(0) <= (at::arange(rows) + first).unsqueeze(1);
}

const Case kCases[] = {{1, 1, 1, 1, 1, 1},      {2, 1, 5, 7, 8, 8},      {3, 3, 1, 256, 64, 64}, {2, 2, 1, 300, 40, 24},
                       {3, 3, 40, 100, 64, 64}, {1, 2, 130, 70, 33, 17}, {2, 5, 1, 65, 16, 16}};

TEST(Attention, EqualsCpuEager) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(nxl::detail::concat(c10::toString(dtype), " rows ", c.rows, " columns ", c.columns));
      const Operands operands(c, dtype);
      const double t = tolerance(dtype);
      expect_close(run(operands, {}), operands.eager({}), t, t, "no mask");
      const at::Tensor flags = causal(c.rows, c.columns, std::max<int64_t>(c.columns - c.rows, 0))
                                   .expand({c.batch, c.groups, c.rows, c.columns});
      expect_close(run(operands, flags), operands.eager(flags), t, t, "flags that heads share");
      const at::Tensor own = at::rand({c.batch, c.groups, c.rows, c.columns}) < 0.7;
      own.select(3, 0).fill_(true);
      expect_close(run(operands, own, 1), operands.eager(own), t, t, "flags of each head");
      const at::Tensor bias = at::randn({c.batch, c.groups, c.rows, c.columns}).to(dtype).to(at::kFloat);
      expect_close(run(operands, bias), operands.eager(bias), t, t, "an additive mask");
    }
  }
}

TEST(Attention, AnyLayout) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : {Case{2, 3, 1, 20, 16, 16}, Case{2, 2, 9, 35, 16, 24}}) {
      Operands operands(c, dtype);
      const at::Tensor flags = causal(c.rows, c.columns, 3).expand({c.batch, c.groups, c.rows, c.columns});
      const at::Tensor expected = run(operands, flags);
      at::Tensor y = in_odd_layout(operands.empty_result());
      run_step("attention",
               {in_odd_layout(operands.query), in_odd_layout(operands.key), in_odd_layout(operands.value),
                operands.scale, in_odd_layout(flags)},
               {y});
      expect_close(y, expected, tolerance(dtype), tolerance(dtype));
    }
  }
}

TEST(Attention, ARowThatSeesNothingIsZero) {
  const Operands operands({2, 2, 6, 40, 16, 16}, at::kBFloat16);
  at::Tensor flags = causal(6, 40, 10).expand({2, 2, 6, 40}).contiguous();
  flags.select(2, 3).fill_(false);
  const at::Tensor y = run(operands, flags);
  EXPECT_TRUE(at::equal(y.select(2, 3), at::zeros_like(y.select(2, 3))));
  expect_close(y, operands.eager(flags), tolerance(at::kBFloat16), tolerance(at::kBFloat16));
  const at::Tensor none = run(operands, at::zeros({2, 2, 6, 40}, at::kBool));
  EXPECT_TRUE(at::equal(none, at::zeros_like(none)));
  const at::Tensor bias = at::full({2, 2, 6, 40}, -kInfinity);
  EXPECT_TRUE(at::equal(run(operands, bias), at::zeros_like(none)));
}

// What lies behind the valid part of a cache is not read: it may be anything.
TEST(Attention, MaskedColumnsAtTheEndsAreNotRead) {
  for (int64_t rows : {1, 20}) {
    Operands operands({2, 3, rows, 60, 16, 16}, at::kBFloat16);
    at::Tensor flags = causal(rows, 60, 20).logical_and(at::arange(60) >= 5).expand({2, 3, rows, 60});
    const at::Tensor expected = run(operands, flags);
    operands.key.slice(1, 20 + rows).fill_(kInfinity);
    operands.value.slice(1, 20 + rows).fill_(std::nan(""));
    operands.value.slice(1, 0, 5).fill_(std::nan(""));
    expect_close(run(operands, flags), expected);
  }
}

TEST(Attention, NanInfinityAndDenormals) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (int64_t rows : {1, 9}) {
      SCOPED_TRACE(nxl::detail::concat(c10::toString(dtype), " rows ", rows));
      Operands operands({1, 2, rows, 33, 16, 16}, dtype);
      operands.query.select(1, 1).fill_(std::nan(""));
      operands.key.select(1, 4).fill_(-kInfinity);
      operands.value.select(1, 7).select(1, 2).fill_(kInfinity);
      operands.value.select(1, 8).fill_(1e-39);
      expect_close(run(operands, {}), operands.eager({}), tolerance(dtype), tolerance(dtype));
      const at::Tensor bias = at::zeros({1, 2, rows, 33});
      bias.select(3, 4).fill_(-kInfinity);
      bias.select(3, 32).fill_(kInfinity);
      expect_close(run(operands, bias), operands.eager(bias), tolerance(dtype), tolerance(dtype), "additive");
    }
  }
  // Denormals alone: they are neither flushed on the way in nor on the way out.
  Operands tiny({1, 1, 1, 4, 8, 8}, at::kBFloat16);
  tiny.query.fill_(0);
  tiny.value.fill_(std::ldexp(1.0f, -130));
  EXPECT_TRUE(at::equal(run(tiny, {}), at::full({1, 1, 1, 8}, std::ldexp(1.0f, -130), at::kBFloat16)));
}

TEST(Attention, EmptyOperands) {
  const Operands none({0, 2, 3, 4, 8, 8}, at::kFloat);
  EXPECT_EQ(run(none, {}).numel(), 0);
  const Operands no_rows({2, 2, 0, 4, 8, 8}, at::kFloat);
  EXPECT_EQ(run(no_rows, {}).numel(), 0);
  const Operands no_width({2, 2, 3, 4, 0, 8}, at::kFloat);
  expect_close(run(no_width, {}), no_width.value.mean(1, true).unsqueeze(1).expand({2, 2, 3, 8}), 1e-6, 1e-6);
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const Operands o({2, 2, 3, 4, 8, 8}, at::kFloat);
  const at::Tensor y = o.empty_result();
  expect_refused("attention", {o.query, o.key, o.value}, {y}, "{}", ErrorKind::kInvalid, "3 inputs");
  expect_refused("attention", {o.query, o.key.slice(1, 1), o.value, o.scale}, {y}, "{}", ErrorKind::kInvalid, "value");
  expect_refused("attention", {o.query, o.key.to(at::kHalf), o.value, o.scale}, {y}, "{}", ErrorKind::kInvalid, "key");
  expect_refused("attention", {o.query, o.key, o.value, o.scale.to(at::kDouble)}, {y}, "{}", ErrorKind::kInvalid,
                 "scale");
  expect_refused("attention", {o.query, o.key, o.value, o.scale, at::ones({3, 4}, at::kBool)}, {y}, "{}",
                 ErrorKind::kInvalid, "mask");
  const Operands d({2, 2, 3, 4, 8, 8}, at::kDouble);
  expect_refused("attention", {d.query, d.key, d.value, d.scale}, {d.empty_result()}, "{}", ErrorKind::kUnsupported,
                 "Double");
  const Operands empty({2, 2, 3, 0, 8, 8}, at::kFloat);
  expect_refused("attention", {empty.query, empty.key, empty.value, empty.scale}, {empty.empty_result()}, "{}",
                 ErrorKind::kInvalid, "no key");
}

std::vector<const RowKernels*> row_sets() {
  std::vector<const RowKernels*> all{&row_kernels_portable()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    all.push_back(&row_kernels_avx2());
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    all.push_back(&row_kernels_avx512());
  }
#endif
  return all;
}

TEST(RowLoops, SoftmaxOfEveryLengthAndRounding) {
  for (const RowKernels* kernels : row_sets()) {
    for (const auto& [rounding, dtype] : {std::pair{Rounding::kNone, at::kFloat},
                                          {Rounding::kBFloat16, at::kBFloat16},
                                          {Rounding::kFloat16, at::kHalf}}) {
      for (int64_t n : {1, 3, 15, 16, 17, 100}) {
        SCOPED_TRACE(nxl::detail::concat(kernels->name, " n ", n, " ", c10::toString(dtype)));
        const at::Tensor x = sample({n}, at::kFloat, 3);
        const at::Tensor keep = (at::rand({n}) < 0.5).logical_or(at::arange(n) == n / 2);
        std::vector<float> row(static_cast<size_t>(n + kRowPad), std::nanf(""));
        std::vector<uint8_t> flags(static_cast<size_t>(n + kRowPad), 1);
        std::copy_n(x.const_data_ptr<float>(), n, row.begin());
        std::copy_n(keep.const_data_ptr<bool>(), n, flags.begin());
        const float sum = kernels->softmax(row.data(), n, 0.5f, flags.data(), nullptr, rounding);
        const at::Tensor scores = at::where(keep, x * 0.5, at::full({}, -kInfinity));
        const at::Tensor weights = at::exp(scores - scores.max());
        EXPECT_NEAR(sum, weights.sum().item<float>(), 1e-5 * sum);
        const double t = dtype == at::kFloat ? 1e-6 : tolerance(dtype) / 2;
        expect_close(at::from_blob(row.data(), {n}, at::kFloat), weights.to(dtype).to(at::kFloat), t, 0);
        if (dtype == at::kBFloat16) {
          const at::Tensor again = at::from_blob(row.data(), {n}, at::kFloat);
          EXPECT_TRUE(at::equal(again, again.to(dtype).to(at::kFloat))) << "not rounded";
        }
      }
    }
    std::vector<float> row(kRowPad, 1.0f);
    row[3] = std::nanf("");
    EXPECT_TRUE(std::isnan(kernels->softmax(row.data(), 5, 1, nullptr, nullptr, Rounding::kBFloat16)));
    std::vector<float> lowest(kRowPad, -kInfinity);
    EXPECT_TRUE(std::isnan(kernels->softmax(lowest.data(), 5, 1, nullptr, nullptr, Rounding::kNone)));
  }
}

}  // namespace
}  // namespace nxl::host::testing
