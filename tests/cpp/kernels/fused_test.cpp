// SPDX-License-Identifier: Apache-2.0
// fused against the same chain step by step in ATen, rounding by rounding; every row loop of every instruction set.
#include <cmath>
#include <limits>

#include "host/kernels/row_kernels.h"
#include "program_builder.h"

namespace nxl::host::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const char* const kNorm =
    R"({"program":[["convert","f32",0],["multiply","f32",4,4],["sum","f32",5],["divide","f32",6,1],["add","f32",7,2],
    ["rsqrt","f32",8],["multiply","f32",4,9],["convert","bf16",10],["multiply","bf16",3,11]],"results":[12]})";

TEST(Fused, RootMeanSquareNorm) {
  for (int64_t rows : {1, 5, 130}) {
    for (int64_t n : {1, 7, 64, 577}) {
      SCOPED_TRACE(nxl::detail::concat("rows ", rows, " n ", n));
      const at::Tensor x = sample({rows, n}, at::kBFloat16, 3), weight = sample({n}, at::kBFloat16, 1);
      const at::Tensor count = at::scalar_tensor(static_cast<double>(n), at::kFloat), epsilon = at::full({}, 1e-5f);
      at::Tensor y = at::empty({rows, n}, at::kBFloat16);
      run_step("fused", {x, count.expand({rows, 1}), epsilon.expand({rows, 1}), weight.expand({rows, n})}, {y}, kNorm,
               2);
      const at::Tensor wide = x.to(at::kFloat);
      const at::Tensor scale = at::rsqrt((wide * wide).sum(-1, true) / count + epsilon);
      // The sum's order differs, which may move a product to the next bf16.
      expect_close(y, weight * (wide * scale).to(at::kBFloat16), 1.0 / 128, 0);
    }
  }
}

// Elementwise chains are exact: one rounding per operation, in any layout, whole rows and pieces of them.
TEST(Fused, GateRoundsEveryOperation) {
  const char* const program =
      R"({"program":[["convert","f32",0],["logistic","f32",2],["multiply","f32",2,3],["convert","DTYPE",4],
      ["multiply","DTYPE",5,1]],"results":[6]})";
  for (const auto& [dtype, name] : {std::pair{at::kBFloat16, "bf16"}, {at::kHalf, "f16"}, {at::kFloat, "f32"}}) {
    std::string text = program;
    for (size_t at; (at = text.find("DTYPE")) != std::string::npos;) text.replace(at, 5, name);
    for (const auto& shape : {std::vector<int64_t>{5000}, {3, 40}, {2, 3, 17}, {1, 1}}) {
      const at::Tensor gate = sample(shape, dtype, 6, true), up = sample(shape, dtype, 2, true);
      const at::Tensor wide = gate.to(at::kFloat);
      const at::Tensor expected = (wide * at::sigmoid(wide)).to(dtype) * up;
      const double t = dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 1.0 / 1024 : 1.0 / 128;
      at::Tensor y = at::empty(shape, dtype);
      run_step("fused", {gate, up}, {y}, text, 2);
      expect_close(y, expected, t, 1e-37);
      if (shape.size() < 2) continue;
      at::Tensor odd = in_odd_layout(y);
      run_step("fused", {in_odd_layout(gate), in_odd_layout(up)}, {odd}, text);
      expect_close(odd, expected, t, 1e-37, "odd layout");
    }
  }
}

TEST(Fused, RoundingIsThatOfTheSeparateSteps) {
  const char* const program =
      R"({"program":[["multiply","bf16",0,1],["multiply","bf16",2,1],["add","bf16",3,4],["subtract","bf16",5,0],
      ["negate","bf16",6],["abs","bf16",5],["maximum","bf16",7,2],["minimum","bf16",8,1]],"results":[5,6,7,8,9,10]})";
  const at::Tensor a = sample({9, 70}, at::kBFloat16, 3, true), b = sample({9, 70}, at::kBFloat16, 3, true),
                   c = sample({9, 70}, at::kBFloat16, 3, true);
  std::vector<at::Tensor> y;
  for (int i = 0; i < 6; ++i) y.push_back(at::empty({9, 70}, at::kBFloat16));
  run_step("fused", {a, b, c}, y, program);
  const at::Tensor total = a * b + c * b, rest = total - a;
  expect_close(y[0], total, 0, 0, "add");
  expect_close(y[1], rest, 0, 0, "subtract");
  expect_close(y[2], -rest, 0, 0, "negate");
  expect_close(y[3], total.abs(), 0, 0, "abs");
  expect_close(y[4], at::maximum(-rest, c), 0, 0, "maximum");
  expect_close(y[5], at::minimum(total.abs(), b), 0, 0, "minimum");
}

TEST(Fused, SoftmaxAndNumbersOfARow) {
  const char* const program =
      R"({"program":[["max","f32",0],["subtract","f32",0,1],["exponential","f32",2],["sum","f32",3],
      ["divide","f32",3,4]],"results":[5,1]})";
  for (int64_t n : {1, 3, 16, 100, 3000}) {
    const at::Tensor x = sample({4, n}, at::kFloat, 5);
    x[2][n / 2] = std::nanf("");
    if (n > 1) x[1].slice(0, 0, n - 1).fill_(-kInfinity);
    at::Tensor y = at::empty({4, n}), top = at::empty({4, 1});
    run_step("fused", {x}, {y, top}, program);
    expect_close(y, at::softmax(x, -1), 1e-5, 1e-7);
    expect_close(top, at::amax(x, {1}, true));
  }
}

TEST(Fused, AnOutputMayBeAnInput) {
  const at::Tensor x = sample({300, 70}, at::kBFloat16, 2), y = sample({300, 70}, at::kBFloat16, 2);
  const at::Tensor total = x + y, share = (total.to(at::kFloat) / total.to(at::kFloat).sum(-1, true)).to(at::kBFloat16);
  at::Tensor other = at::empty_like(x);
  ProgramBuilder builder;
  const uint32_t in = builder.input(x), added = builder.input(y), out = builder.output(other);
  const char* const program =
      R"({"program":[["add","bf16",0,1],["convert","f32",2],["sum","f32",3],["divide","f32",3,4],
    ["convert","bf16",5]],"results":[2,6]})";
  const Status status = builder.step("fused", {in, added}, {in, out}, program).run(2);
  ASSERT_TRUE(status.is_ok()) << status.message;
  expect_close(x, total);
  expect_close(other, share, 1.0 / 128, 0);
}

// A number stands for a whole row of itself, also where the row is reduced.
TEST(Fused, ReductionsOfNumbers) {
  const at::Tensor x = sample({5, 40}, at::kFloat, 2), column = sample({5, 1}, at::kFloat, 2);
  at::Tensor twice = at::empty({5, 1}), top = at::empty({5, 40});
  run_step("fused", {x, column, column.expand({5, 40})}, {twice, top},
           R"({"program":[["sum","f32",0],["sum","f32",3],["max","f32",1],["sum","f32",2],["add","f32",5,6],
           ["add","f32",7,0]],"results":[4,8]})");
  expect_close(twice, x.sum(-1, true) * 40, 1e-5, 1e-4);
  expect_close(top, column + column * 40 + x, 1e-5, 1e-5);
}

TEST(Fused, EmptyRowsAndRefusals) {
  const char* const add = R"({"program":[["add","f32",0,1]],"results":[2]})";
  at::Tensor none = at::empty({0, 5});
  run_step("fused", {at::empty({0, 5}), at::empty({0, 5})}, {none}, add);
  at::Tensor thin = at::empty({5, 0});
  run_step("fused", {at::empty({5, 0}), at::empty({5, 0})}, {thin}, add);
  const at::Tensor a = at::ones({2, 3}), y = at::empty({2, 3});
  const auto refuse = [&](const char* attributes, ErrorKind kind, const char* part) {
    expect_refused("fused", {a, a}, {y}, attributes, kind, part);
  };
  refuse(R"({"results":[2]})", ErrorKind::kInvalid, "`program` is absent");
  refuse(R"({"program":[],"results":[2]})", ErrorKind::kInvalid, "0 operations");
  refuse(R"({"program":[["add","f32",0,2]],"results":[2]})", ErrorKind::kInvalid, "value 2");
  refuse(R"({"program":[["add","f32",0,1]],"results":[3]})", ErrorKind::kInvalid, "value 3");
  refuse(R"({"program":[["add","f32",0,1]],"results":[0]})", ErrorKind::kInvalid, "value 0");
  refuse(R"({"program":[["add","f32",0,1]],"results":[]})", ErrorKind::kInvalid, "0 entries");
  refuse(R"({"program":[["add","bf16",0,1]],"results":[2]})", ErrorKind::kInvalid, "another dtype");
  refuse(R"({"program":[["add","i32",0,1]],"results":[2]})", ErrorKind::kInvalid, "i32");
  refuse(R"({"program":[["power","f32",0,1]],"results":[2]})", ErrorKind::kUnsupported, "power");
  refuse(R"({"program":[["cosine","f32",0]],"results":[2]})", ErrorKind::kUnsupported, "cosine");
  refuse(R"({"program":[["add","f32"]],"results":[2]})", ErrorKind::kInvalid, "2 words");
  expect_refused("fused", {a, at::ones({3, 3})}, {y}, add, ErrorKind::kInvalid, "shape");
  expect_refused("fused", {a, at::ones({2, 3}, at::kInt)}, {y}, add, ErrorKind::kUnsupported, "Int");
  expect_refused("fused", {at::ones({}), at::ones({})}, {at::empty({})}, add, ErrorKind::kInvalid, "scalar");
}

at::Tensor apply(RowUnary op, const at::Tensor& x) {
  switch (op) {
    case RowUnary::kNegate:
      return -x;
    case RowUnary::kAbs:
      return x.abs();
    case RowUnary::kExponential:
      return x.exp();
    case RowUnary::kLogistic:
      return x.sigmoid();
    case RowUnary::kTanh:
      return x.tanh();
    case RowUnary::kErf:
      return x.erf();
    case RowUnary::kSqrt:
      return x.sqrt();
    case RowUnary::kRsqrt:
      return x.rsqrt();
    default:
      return x;
  }
}

at::Tensor apply(RowBinary op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case RowBinary::kAdd:
      return a + b;
    case RowBinary::kSubtract:
      return a - b;
    case RowBinary::kMultiply:
      return a * b;
    case RowBinary::kDivide:
      return a / b;
    case RowBinary::kMaximum:
      return at::maximum(a, b);
    default:
      return at::minimum(a, b);
  }
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

constexpr at::ScalarType kTypes[] = {at::kBFloat16, at::kHalf, at::kFloat};

at::Tensor padded(const at::Tensor& x) {
  at::Tensor made = at::zeros({x.numel() + kRowPad});
  made.slice(0, 0, x.numel()).copy_(x);
  return made;
}

TEST(RowLoops, EveryOperationAndRounding) {
  for (const RowKernels* kernels : row_sets()) {
    for (size_t type = 0; type < kRowTypes; ++type) {
      for (int64_t n : {1, 16, 37}) {
        // What the type holds, as the loops meet it; NaN, infinities, zeros and denormals among them.
        const at::Tensor a = sample({n}, kTypes[type], 3, true).to(at::kFloat),
                         b = sample({n}, kTypes[type], 3, true).to(at::kFloat);
        const at::Tensor x = padded(a), z = padded(b), y = padded(a);
        float* out = y.mutable_data_ptr<float>();
        const auto result = [&] { return y.slice(0, 0, n).to(kTypes[type]); };
        for (size_t op = 0; op < kRowUnaries; ++op) {
          SCOPED_TRACE(nxl::detail::concat(kernels->name, " unary ", op, " ", c10::toString(kTypes[type]), " n ", n));
          kernels->unary[op][type](out, x.const_data_ptr<float>(), n);
          const double t = kTypes[type] == at::kFloat ? 1e-6 : kTypes[type] == at::kHalf ? 1.0 / 1024 : 1.0 / 128;
          const bool exact = op <= static_cast<size_t>(RowUnary::kAbs);
          expect_close(result(), apply(static_cast<RowUnary>(op), a).to(kTypes[type]), exact ? 0 : t,
                       exact ? 0 : 1e-37);
        }
        for (size_t op = 0; op < kRowBinaries; ++op) {
          SCOPED_TRACE(nxl::detail::concat(kernels->name, " binary ", op, " ", c10::toString(kTypes[type]), " n ", n));
          const auto check = [&](RowForm form, const at::Tensor& left, const at::Tensor& right) {
            kernels->binary[op][static_cast<size_t>(form)][type](out, x.const_data_ptr<float>(),
                                                                 z.const_data_ptr<float>(), n);
            expect_close(result(), apply(static_cast<RowBinary>(op), left, right).to(kTypes[type]));
          };
          check(RowForm::kRows, a, b);
          check(RowForm::kRightNumber, a, b[0]);
          check(RowForm::kLeftNumber, a[0], b);
        }
      }
    }
  }
}

TEST(RowLoops, MemoryAndReductions) {
  for (const RowKernels* kernels : row_sets()) {
    for (int64_t n : {0, 1, 15, 16, 17, 200}) {
      SCOPED_TRACE(nxl::detail::concat(kernels->name, " n ", n));
      for (size_t type = 0; type < kRowTypes; ++type) {
        const at::Tensor x = sample({n}, kTypes[type], 3, true);
        at::Tensor wide = at::full({n + 1}, 7.0f), back = at::full({n + 1}, 7, kTypes[type]);
        kernels->widen[type](wide.mutable_data_ptr<float>(), x.const_data_ptr(), n);
        expect_close(wide.slice(0, 0, n), x.to(at::kFloat));
        kernels->narrow[type](back.mutable_data_ptr(), wide.const_data_ptr<float>(), n);
        expect_close(back.slice(0, 0, n), x);
        EXPECT_EQ(wide[n].item<float>(), 7);
        EXPECT_EQ(back[n].item<float>(), 7);
      }
      const at::Tensor x = sample({n}, at::kFloat, 3);
      EXPECT_NEAR(kernels->sum(x.const_data_ptr<float>(), n), x.sum(at::kDouble).item<double>(), 1e-4);
      if (n == 0) {
        EXPECT_EQ(kernels->maximum(x.const_data_ptr<float>(), n), -kInfinity);
        continue;
      }
      EXPECT_EQ(kernels->maximum(x.const_data_ptr<float>(), n), x.max().item<float>());
      x[n - 1] = std::nanf("");
      EXPECT_TRUE(std::isnan(kernels->maximum(x.const_data_ptr<float>(), n)));
      EXPECT_TRUE(std::isnan(kernels->sum(x.const_data_ptr<float>(), n)));
    }
  }
}

}  // namespace
}  // namespace nxl::host::testing
