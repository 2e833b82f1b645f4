// SPDX-License-Identifier: Apache-2.0
// Elementwise ops against ATen or a loop, over dtypes and layouts.
#include <bit>
#include <cmath>
#include <functional>

#include "program_builder.h"

namespace nxl::host::testing {
namespace {

using Unary = std::function<at::Tensor(const at::Tensor&)>;
using Binary = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

const std::vector<std::vector<int64_t>> kShapes = {{}, {0, 3}, {1}, {17}, {3, 4, 5}, {40, 1000}};
const std::vector<at::ScalarType> kFloats = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
const std::vector<at::ScalarType> kIntegers = {at::kChar, at::kByte,   at::kShort, at::kUInt16,
                                               at::kInt,  at::kUInt32, at::kLong,  at::kUInt64};

double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 1.0 / 128;  // one step of bf16: the oracle rounds from f64, the kernel from f32
    case at::kHalf:
      return 1.0 / 1024;
    case at::kDouble:
      return 1e-12;
    default:
      return 2e-5;
  }
}

void check_unary(const std::string& op, const Unary& oracle, at::ScalarType dtype, double lowest = -1e300,
                 double highest = 1e300) {
  for (const auto& shape : kShapes) {
    at::Tensor x = sample(shape, dtype, 2.0, /*special=*/lowest < -1e200);
    if (x.is_floating_point() && lowest > -1e200) x = x.clamp(lowest, highest);
    const bool exact = c10::isIntegralType(dtype, true);
    const at::Tensor expected =
        exact ? oracle(x) : oracle(x.to(x.is_complex() ? at::kComplexDouble : at::kDouble)).to(dtype);
    at::Tensor dense = at::empty_like(expected), odd = in_odd_layout(at::zeros_like(expected));
    run_step(op, {x}, {dense});
    run_step(op, {in_odd_layout(x)}, {odd});
    const double t = exact ? 0 : tolerance(dtype);
    expect_close(dense, expected, t, t, op);
    expect_close(odd, expected, t, t, op);
    if (x.scalar_type() == expected.scalar_type()) {
      at::Tensor in_place = x.clone();
      ProgramBuilder builder;
      const uint32_t value = builder.input(in_place);
      ASSERT_TRUE(builder.step(op, {value}, {value}).run().is_ok());
      expect_close(in_place, dense, 0, 0, op + " in place");
    }
  }
}

TEST(Unary, FloatFunctions) {
  struct Case {
    const char* op;
    Unary oracle;
    double lowest = -1e300, highest = 1e300;
  };
  const Case cases[] = {
      {"abs", [](auto& x) { return x.abs(); }},
      {"ceil", [](auto& x) { return x.ceil(); }},
      {"cosine", [](auto& x) { return x.cos(); }},
      {"exponential", [](auto& x) { return x.exp(); }},
      {"exponential_minus_one", [](auto& x) { return x.expm1(); }},
      {"floor", [](auto& x) { return x.floor(); }},
      {"log", [](auto& x) { return x.log(); }, 0.01, 10},
      {"log_plus_one", [](auto& x) { return x.log1p(); }, -0.9, 10},
      {"logistic", [](auto& x) { return x.sigmoid(); }},
      {"negate", [](auto& x) { return x.neg(); }},
      {"round_nearest_even", [](auto& x) { return x.round(); }},
      {"rsqrt", [](auto& x) { return x.rsqrt(); }, 0.01, 10},
      {"sine", [](auto& x) { return x.sin(); }},
      {"sqrt", [](auto& x) { return x.sqrt(); }},
      {"tan", [](auto& x) { return x.tan(); }, -1.2, 1.2},
      {"tanh", [](auto& x) { return x.tanh(); }},
      {"erf", [](auto& x) { return x.erf(); }},
      {"erfc", [](auto& x) { return x.erfc(); }},
      {"erf_inv", [](auto& x) { return x.erfinv(); }, -0.9, 0.9},
      {"lgamma", [](auto& x) { return x.lgamma(); }, 0.1, 10},
      {"digamma", [](auto& x) { return x.digamma(); }, 2, 10},
      {"acos", [](auto& x) { return x.acos(); }, -0.9, 0.9},
      {"acosh", [](auto& x) { return x.acosh(); }, 1.1, 10},
      {"asin", [](auto& x) { return x.asin(); }, -0.9, 0.9},
      {"asinh", [](auto& x) { return x.asinh(); }},
      {"atan", [](auto& x) { return x.atan(); }},
      {"atanh", [](auto& x) { return x.atanh(); }, -0.9, 0.9},
      {"cosh", [](auto& x) { return x.cosh(); }},
      {"sinh", [](auto& x) { return x.sinh(); }},
      {"bessel_i1e", [](auto& x) { return at::special_i1e(x); }, -10, 10},
  };
  for (const Case& c : cases) {
    for (at::ScalarType dtype : kFloats) {
      SCOPED_TRACE(std::string(c.op) + " " + c10::toString(dtype));
      check_unary(c.op, c.oracle, dtype, c.lowest, c.highest);
    }
  }
}

// A loop over elements as doubles: the oracle where ATen has no such function.
at::Tensor map(const at::Tensor& x, double (*f)(double)) {
  const at::Tensor in = x.to(at::kDouble).contiguous();
  at::Tensor out = at::empty_like(in);
  for (int64_t i = 0; i < in.numel(); ++i) {
    out.mutable_data_ptr<double>()[i] = f(in.const_data_ptr<double>()[i]);
  }
  return out;
}

TEST(Unary, FloatFunctionsThatAtenLacks) {
  for (at::ScalarType dtype : kFloats) {
    SCOPED_TRACE(c10::toString(dtype));
    check_unary(
        "cbrt", [](auto& x) { return map(x, [](double v) { return std::cbrt(v); }); }, dtype);
    check_unary(
        "round_nearest_afz", [](auto& x) { return map(x, [](double v) { return std::round(v); }); }, dtype);
    check_unary(
        "sign", [](auto& x) { return map(x, [](double v) { return v != v || v == 0 ? v
                                                                  : v > 0          ? 1.0
                                                                                   : -1.0; }); },
        dtype);
  }
}

TEST(Unary, SignKeepsNanAndSignedZero) {
  const at::Tensor x = at::tensor({std::nan(""), -0.0, 0.0, -3.0}, at::kFloat);
  at::Tensor y = at::empty_like(x);
  run_step("sign", {x}, {y});
  EXPECT_TRUE(std::isnan(y[0].item<float>()));
  EXPECT_TRUE(std::signbit(y[1].item<float>()) && y[1].item<float>() == 0);
  EXPECT_FALSE(std::signbit(y[2].item<float>()));
  EXPECT_EQ(y[3].item<float>(), -1);
}

TEST(Unary, ComplexFunctions) {
  for (at::ScalarType dtype : {at::kComplexFloat, at::kComplexDouble}) {
    check_unary(
        "exponential", [](auto& x) { return x.exp(); }, dtype);
    check_unary(
        "tanh", [](auto& x) { return x.tanh(); }, dtype);
    check_unary(
        "negate", [](auto& x) { return x.neg(); }, dtype);
    check_unary(
        "sign", [](auto& x) { return x.sgn(); }, dtype);
    const at::Tensor z = sample({3, 4}, dtype);
    for (const char* op : {"abs", "real", "imag"}) {
      const at::Tensor expected = std::string(op) == "abs"    ? z.abs()
                                  : std::string(op) == "real" ? at::real(z)
                                                              : at::imag(z);
      at::Tensor y = at::empty(z.sizes(), expected.scalar_type());
      run_step(op, {z}, {y});
      expect_close(y, expected.contiguous(), 1e-6, 1e-6, op);
    }
    at::Tensor back = at::empty_like(z);
    run_step("complex", {at::real(z).contiguous(), at::imag(z).contiguous()}, {back});
    expect_close(back, z);
  }
}

TEST(Unary, Integers) {
  for (at::ScalarType dtype : kIntegers) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor x = sample({5, 7}, dtype);
    const at::Tensor wide = x.to(at::kLong);
    at::Tensor y = at::empty_like(x);
    run_step("negate", {x}, {y});
    expect_close(y, wide.neg().to(dtype), 0, 0, "negate");
    run_step("not", {x}, {y});
    expect_close(y, wide.bitwise_not().to(dtype), 0, 0, "not");
    run_step("abs", {x}, {y});
    expect_close(y, wide.abs().to(dtype), 0, 0, "abs");
    run_step("sign", {x}, {y});
    expect_close(y, wide.sign().to(dtype), 0, 0, "sign");
    at::Tensor ones = at::empty_like(x), zeros = at::empty_like(x);
    run_step("popcnt", {x}, {ones});
    run_step("count_leading_zeros", {x}, {zeros});
    const int width = static_cast<int>(x.element_size()) * 8;
    for (int64_t i = 0; i < 35; ++i) {
      const auto bits = static_cast<uint64_t>(wide.flatten()[i].item<int64_t>()) << (64 - width);
      EXPECT_EQ(ones.to(at::kLong).flatten()[i].item<int64_t>(), std::popcount(bits));
      EXPECT_EQ(zeros.to(at::kLong).flatten()[i].item<int64_t>(), std::min(width, std::countl_zero(bits)));
    }
  }
  const at::Tensor flags = sample({9}, at::kBool);
  at::Tensor y = at::empty_like(flags);
  run_step("not", {flags}, {y});
  expect_close(y, flags.logical_not());
}

TEST(Unary, Tests) {
  for (at::ScalarType dtype : kFloats) {
    const at::Tensor x = sample({4, 5}, dtype, 2.0, true);
    at::Tensor y = at::empty({4, 5}, at::kBool);
    run_step("is_finite", {x}, {y});
    expect_close(y, at::isfinite(x));
    run_step("is_inf", {x}, {y});
    expect_close(y, at::isinf(x));
    run_step("is_pos_inf", {x}, {y});
    expect_close(y, at::isposinf(x));
    run_step("is_neg_inf", {x}, {y});
    expect_close(y, at::isneginf(x));
  }
}

// Element by element: ATen's vectorised fmod is wrong for denormal divisors.
at::Tensor exact_fmod(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble).contiguous(), y = b.to(at::kDouble).contiguous();
  at::Tensor out = at::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    out.mutable_data_ptr<double>()[i] = std::fmod(x.const_data_ptr<double>()[i], y.const_data_ptr<double>()[i]);
  }
  return out.to(a.scalar_type());
}

void check_binary(const std::string& op, const Binary& oracle, const at::Tensor& a, const at::Tensor& b, double t) {
  const at::Tensor expected = oracle(a, b);
  at::Tensor dense = at::empty_like(expected), odd = in_odd_layout(at::zeros_like(expected));
  run_step(op, {a, b}, {dense});
  expect_close(dense, expected, t, t, op);
  run_step(op, {in_odd_layout(a), b}, {odd});
  expect_close(odd, expected, t, t, op);
  const at::Tensor row = a.dim() > 0 && a.size(0) > 0 ? a.slice(0, 0, 1).expand(a.sizes()) : a;
  at::Tensor spread = at::empty_like(expected);
  run_step(op, {row, b}, {spread});
  expect_close(spread, oracle(row, b), t, t, op + " broadcast");
}

TEST(Binary, Floats) {
  for (at::ScalarType dtype : kFloats) {
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(c10::toString(dtype));
      const at::Tensor a = sample(shape, dtype, 2.0, true),
                       b = sample(shape, dtype, 2.0, true)
                               .flip(a.dim() > 0 ? std::vector<int64_t>{0} : std::vector<int64_t>{});
      check_binary(
          "add", [](auto& x, auto& y) { return x + y; }, a, b, 0);
      check_binary(
          "subtract", [](auto& x, auto& y) { return x - y; }, a, b, 0);
      check_binary(
          "multiply", [](auto& x, auto& y) { return x * y; }, a, b, 0);
      check_binary(
          "divide", [](auto& x, auto& y) { return x / y; }, a, b, 0);
      check_binary("remainder", exact_fmod, a, b, 0);
      check_binary(
          "power", [](auto& x, auto& y) { return at::pow(x, y); }, a, b, tolerance(dtype));
      check_binary(
          "maximum", [](auto& x, auto& y) { return at::maximum(x, y); }, a, b, 0);
      check_binary(
          "minimum", [](auto& x, auto& y) { return at::minimum(x, y); }, a, b, 0);
      check_binary(
          "atan2", [](auto& x, auto& y) { return at::atan2(x, y); }, a, b, tolerance(dtype));
      check_binary(
          "next_after", [](auto& x, auto& y) { return at::nextafter(x, y); }, a, b, 0);
    }
    const at::Tensor s = sample({20}, dtype).abs() + 1.5, x = sample({20}, dtype).abs() + 0.5;
    at::Tensor y = at::empty_like(x);
    run_step("zeta", {s, x}, {y});
    expect_close(y, at::special_zeta(s.to(at::kDouble), x.to(at::kDouble)).to(dtype), tolerance(dtype), 1e-5, "zeta");
    for (int64_t n : {0, 1, 2, 3}) {
      run_step("polygamma", {at::full({20}, static_cast<double>(n), dtype), x}, {y});
      expect_close(y, at::polygamma(n, x.to(at::kDouble)).to(dtype), 2 * tolerance(dtype), 1e-4, "polygamma");
    }
  }
}

TEST(Binary, RoundsOncePerOp) {
  const at::Tensor a = sample({1000}, at::kBFloat16), b = sample({1000}, at::kBFloat16);
  at::Tensor y = at::empty_like(a);
  run_step("multiply", {a, b}, {y});
  expect_close(y, (a.to(at::kFloat) * b.to(at::kFloat)).to(at::kBFloat16));
}

TEST(Binary, IntegersWrapAndNeverTrap) {
  for (at::ScalarType dtype : kIntegers) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor a = sample({6, 50}, dtype), b = sample({6, 50}, dtype);
    const at::Tensor wa = a.to(at::kLong), wb = b.to(at::kLong);
    const bool is_signed = c10::isSignedType(dtype);
    const auto check = [&](const char* op, const at::Tensor& expected) {
      at::Tensor y = at::empty_like(a);
      run_step(op, {a, b}, {y});
      expect_close(y, expected.to(dtype), 0, 0, op);
      at::Tensor odd = in_odd_layout(y);
      run_step(op, {in_odd_layout(a), in_odd_layout(b)}, {odd});
      expect_close(odd, y, 0, 0, op);
    };
    check("add", wa + wb);
    check("subtract", wa - wb);
    check("multiply", wa * wb);
    check("maximum", at::maximum(wa, wb));
    check("minimum", at::minimum(wa, wb));
    check("and", wa & wb);
    check("or", wa | wb);
    check("xor", wa ^ wb);
    const at::Tensor divisor = at::where(wb == 0, at::ones_like(wb), wb);
    check("divide", at::where(wb == 0, at::full_like(wb, -1), at::div(wa, divisor, "trunc")));
    check("remainder", at::where(wb == 0, wa, at::fmod(wa, divisor)));
    const int64_t width = a.element_size() * 8;
    const at::Tensor inside = (wb >= 0) & (wb < width), amount = at::where(inside, wb, at::zeros_like(wb));
    check("shift_left", at::where(inside, at::bitwise_left_shift(wa, amount), at::zeros_like(wa)));
    if (is_signed) {
      check("shift_right_arithmetic", at::where(inside, at::bitwise_right_shift(wa, amount), at::where(wa < 0, -1, 0)));
    } else {
      check("shift_right_logical", at::where(inside, at::bitwise_right_shift(wa, amount), at::zeros_like(wa)));
    }
  }
}

TEST(Binary, IntegerCorners) {
  const int32_t lowest = std::numeric_limits<int32_t>::min();
  const at::Tensor a = at::tensor({lowest, 7, lowest, 7, -8, 2, -1, -1, 0}, at::kInt);
  const at::Tensor b = at::tensor({-1, 0, 0, 2, 3, -1, -3, -2, 0}, at::kInt);
  at::Tensor y = at::empty_like(a);
  run_step("divide", {a, b}, {y});
  expect_close(y, at::tensor({lowest, -1, -1, 3, -2, -2, 0, 0, -1}, at::kInt));
  run_step("remainder", {a, b}, {y});
  expect_close(y, at::tensor({0, 7, lowest, 1, -2, 0, -1, -1, 0}, at::kInt));
  run_step("power", {a, b}, {y});
  expect_close(y, at::tensor({0, 1, 1, 49, -512, 0, -1, 1, 1}, at::kInt));
  const at::Tensor shift = at::tensor({0, 31, 32, 33, -1, 1, 40, 2, 3}, at::kInt);
  run_step("shift_right_arithmetic", {a, shift}, {y});
  expect_close(y, at::tensor({lowest, 0, -1, 0, -1, 1, -1, -1, 0}, at::kInt));
  run_step("shift_right_logical", {a, shift}, {y});
  expect_close(y, at::tensor({lowest, 0, 0, 0, 0, 1, 0, 0x3fffffff, 0}, at::kInt));
}

TEST(Binary, Bool) {
  const at::Tensor a = sample({50}, at::kBool), b = sample({50}, at::kBool);
  at::Tensor y = at::empty_like(a);
  const std::pair<const char*, at::Tensor> cases[] = {{"and", a & b},    {"or", a | b},       {"xor", a ^ b},
                                                      {"add", a | b},    {"multiply", a & b}, {"maximum", a | b},
                                                      {"minimum", a & b}};
  for (const auto& [op, expected] : cases) {
    run_step(op, {a, b}, {y});
    expect_close(y, expected, 0, 0, op);
  }
}

TEST(Binary, Float8PassesThroughFloat) {
  for (at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const at::Tensor a = sample({40}, at::kFloat).to(dtype), b = sample({40}, at::kFloat).to(dtype);
    at::Tensor y = at::empty_like(a);
    run_step("add", {a, b}, {y});
    expect_close(y.to(at::kFloat), (a.to(at::kFloat) + b.to(at::kFloat)).to(dtype).to(at::kFloat));
    run_step("tanh", {a}, {y});
    expect_close(y.to(at::kFloat), a.to(at::kFloat).tanh().to(dtype).to(at::kFloat));
  }
}

TEST(Elementwise, RefusesWhatDoesNotFit) {
  const at::Tensor f = at::ones({3}), g = at::ones({4}), i = at::ones({3}, at::kInt);
  expect_refused("add", {f}, {at::empty({3})}, "{}", ErrorKind::kInvalid, "takes 2 inputs");
  expect_refused("add", {f, g}, {at::empty({3})}, "{}", ErrorKind::kInvalid, "input 1 has shape [4]");
  expect_refused("add", {f, i}, {at::empty({3})}, "{}", ErrorKind::kInvalid, "input 1 has dtype Int");
  expect_refused("tanh", {f}, {at::empty({4})}, "{}", ErrorKind::kInvalid, "shape");
  expect_refused("tanh", {i}, {at::empty({3}, at::kInt)}, "{}", ErrorKind::kUnsupported, "dtype Int");
  expect_refused("and", {f, f}, {at::empty({3})}, "{}", ErrorKind::kUnsupported, "dtype Float");
  expect_refused("is_finite", {f}, {at::empty({3})}, "{}", ErrorKind::kInvalid, "output 0 has dtype Float");
}

}  // namespace
}  // namespace nxl::host::testing
