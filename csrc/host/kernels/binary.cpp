// SPDX-License-Identifier: Apache-2.0
// Elementwise ops of two operands.
#include <ATen/core/Tensor.h>
#include <ATen/native/Math.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/atan2_cpu_dispatch.h>
#include <ATen/ops/bitwise_and_cpu_dispatch.h>
#include <ATen/ops/bitwise_or_cpu_dispatch.h>
#include <ATen/ops/bitwise_xor_cpu_dispatch.h>
#include <ATen/ops/div.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/maximum_cpu_dispatch.h>
#include <ATen/ops/minimum_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/nextafter_cpu_dispatch.h>
#include <ATen/ops/pow_cpu_dispatch.h>
#include <ATen/ops/special_zeta_cpu_dispatch.h>
#include <ATen/ops/sub_cpu_dispatch.h>

#include <cmath>
#include <limits>

#include "host/kernels/dtype_map.h"
#include "host/kernels/integer_arithmetic.h"
#include "host/kernels/narrow_float.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

at::ScalarType check_operands(StepContext& step) {
  step.expect(2, 1);
  for (size_t i = 0; i < 2; ++i) {
    const std::string what = nxl::detail::concat("input ", i);
    step.expect_shape(step.input(i), step.output(0).sizes(), what);
    step.expect_same_dtype(step.input(i), step.output(0), what);
  }
  return step.output(0).scalar_type();
}

[[noreturn]] void refuse_dtype(StepContext& step, at::ScalarType dtype) {
  step.unsupported(nxl::detail::concat("not defined for dtype ", c10::toString(dtype)));
}

// `call(y, a, b)` on the operands themselves, or on f32 copies for float8.
template <typename Call>
Kernel call_aten(StepContext& step, Call call) {
  const at::ScalarType dtype = step.output(0).scalar_type();
  if (c10::isFloat8Type(dtype)) {
    return through_float(step.output(0), {step.input(0), step.input(1)},
                         [call](at::Tensor& y, const std::vector<at::Tensor>& x) { call(y, x[0], x[1]); });
  }
  const at::ScalarType twin = signed_twin(dtype);
  return [y = reinterpret(step.output(0), twin), a = reinterpret(step.input(0), twin),
          b = reinterpret(step.input(1), twin), call]() mutable { call(y, a, b); };
}

template <typename List, typename Op>
Kernel loop_over(StepContext& step, Op) {
  Kernel kernel;
  const at::ScalarType dtype = step.output(0).scalar_type();
  visit_type(List{}, dtype, [&]<typename T>() {
    kernel = elementwise_loop<T, T, T>(step.output(0), {step.input(0), step.input(1)},
                                       [](T a, T b) { return Op::template apply<T>(a, b); });
  });
  if (!kernel) refuse_dtype(step, dtype);
  return kernel;
}

bool is_integer(at::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/false); }

Kernel prepare_add(StepContext& step) {
  check_operands(step);
  return call_aten(step, [](at::Tensor& y, const at::Tensor& a, const at::Tensor& b) { at::cpu::add_out(y, a, b); });
}

Kernel prepare_subtract(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (dtype == at::kBool) refuse_dtype(step, dtype);
  return call_aten(step, [](at::Tensor& y, const at::Tensor& a, const at::Tensor& b) { at::cpu::sub_out(y, a, b); });
}

Kernel prepare_multiply(StepContext& step) {
  check_operands(step);
  return call_aten(step, [](at::Tensor& y, const at::Tensor& a, const at::Tensor& b) { at::cpu::mul_out(y, a, b); });
}

Kernel prepare_divide(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (is_integer(dtype)) return loop_over<IntegerTypes>(step, IntegerDivide{});
  if (dtype == at::kBool) refuse_dtype(step, dtype);
  return call_aten(step, [](at::Tensor& y, const at::Tensor& a, const at::Tensor& b) { at::cpu::div_out(y, a, b); });
}

// Exact. ATen's vectorised fmod answers NaN for a denormal divisor.
struct FloatRemainder {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(std::fmod(static_cast<accumulator_t<T>>(a), static_cast<accumulator_t<T>>(b)));
  }
};

Kernel prepare_remainder(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (is_integer(dtype)) return loop_over<IntegerTypes>(step, IntegerRemainder{});
  return loop_over<AllFloatTypes>(step, FloatRemainder{});
}

Kernel prepare_power(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (is_integer(dtype)) return loop_over<IntegerTypes>(step, IntegerPower{});
  if (dtype == at::kBool) refuse_dtype(step, dtype);
  return call_aten(step, [](at::Tensor& y, const at::Tensor& a, const at::Tensor& b) { at::cpu::pow_out(y, a, b); });
}

struct Larger {
  template <typename T>
  static T apply(T a, T b) {
    return a < b ? b : a;
  }
};
struct Smaller {
  template <typename T>
  static T apply(T a, T b) {
    return b < a ? b : a;
  }
};

// Complex numbers order by real part, then imaginary part; a NaN anywhere wins.
template <bool largest>
struct ComplexExtremum {
  template <typename T>
  static T apply(T a, T b) {
    if (std::isnan(a.real()) || std::isnan(a.imag())) return a;
    if (std::isnan(b.real()) || std::isnan(b.imag())) return b;
    const bool a_less = a.real() != b.real() ? a.real() < b.real() : a.imag() < b.imag();
    return a_less == largest ? b : a;
  }
};

using AtenBinary = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&);

template <AtenBinary aten, typename Loop, bool largest>
Kernel prepare_extremum(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (is_unsigned_wide(dtype)) return loop_over<UnsignedTypes>(step, Loop{});
  if (c10::isComplexType(dtype)) return loop_over<ComplexTypes>(step, ComplexExtremum<largest>{});
  return call_aten(step, [](at::Tensor& y, const at::Tensor& a, const at::Tensor& b) { aten(y, a, b); });
}

template <AtenBinary aten>
Kernel prepare_bitwise(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (!c10::isIntegralType(dtype, /*includeBool=*/true)) refuse_dtype(step, dtype);
  return call_aten(step, [](at::Tensor& y, const at::Tensor& a, const at::Tensor& b) { aten(y, a, b); });
}

template <typename Op>
Kernel prepare_integer(StepContext& step) {
  check_operands(step);
  return loop_over<IntegerTypes>(step, Op{});
}

template <AtenBinary aten>
Kernel prepare_float(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (!c10::isFloatingType(dtype)) refuse_dtype(step, dtype);
  return call_aten(step, [](at::Tensor& y, const at::Tensor& a, const at::Tensor& b) { aten(y, a, b); });
}

// CHLO's definition: -i * log((x + i*y) / sqrt(x^2 + y^2)).
struct ComplexAtan2 {
  template <typename T>
  static T apply(T y, T x) {
    const T i(0, 1);
    return -i * std::log((x + i * y) / std::sqrt(x * x + y * y));
  }
};

Kernel prepare_atan2(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (c10::isComplexType(dtype)) {
    return loop_over<ComplexTypes>(step, ComplexAtan2{});
  }
  return prepare_float<&at::cpu::atan2_out>(step);
}

// nextafter of a float8 is a neighbour in float8; passing through f32 would not move at all.
Kernel prepare_next_after(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (c10::isFloat8Type(dtype)) refuse_dtype(step, dtype);
  return prepare_float<&at::cpu::nextafter_out>(step);
}

Kernel prepare_zeta(StepContext& step) {
  const at::ScalarType dtype = check_operands(step);
  if (dtype == at::kBFloat16 || dtype == at::kHalf) {
    return through_float(
        step.output(0), {step.input(0), step.input(1)},
        [](at::Tensor& y, const std::vector<at::Tensor>& x) { at::cpu::special_zeta_out(y, x[0], x[1]); });
  }
  return prepare_float<&at::cpu::special_zeta_out>(step);
}

// polygamma(n, x): n comes as a float that holds a whole number >= 0, anything else gives NaN.
struct Polygamma {
  template <typename T>
  static T apply(T order, T at) {
    using W = accumulator_t<T>;
    const W n = static_cast<W>(order), x = static_cast<W>(at);
    if (!(n >= 0) || n != std::floor(n)) return static_cast<T>(std::numeric_limits<W>::quiet_NaN());
    if (n == 0) return static_cast<T>(calc_digamma(x));
    const W sign = std::fmod(n, W(2)) == 0 ? W(-1) : W(1);
    return static_cast<T>(sign * std::exp(std::lgamma(n + W(1))) * zeta<W>(n + W(1), x));
  }
};

Kernel prepare_polygamma(StepContext& step) {
  check_operands(step);
  return loop_over<AllFloatTypes>(step, Polygamma{});
}

constexpr KernelEntry kKernels[] = {
    {"add", prepare_add},
    {"and", prepare_bitwise<&at::cpu::bitwise_and_out>},
    {"atan2", prepare_atan2},
    {"divide", prepare_divide},
    {"maximum", prepare_extremum<&at::cpu::maximum_out, Larger, true>},
    {"minimum", prepare_extremum<&at::cpu::minimum_out, Smaller, false>},
    {"multiply", prepare_multiply},
    {"next_after", prepare_next_after},
    {"or", prepare_bitwise<&at::cpu::bitwise_or_out>},
    {"polygamma", prepare_polygamma},
    {"power", prepare_power},
    {"remainder", prepare_remainder},
    {"shift_left", prepare_integer<ShiftLeft>},
    {"shift_right_arithmetic", prepare_integer<ShiftRightArithmetic>},
    {"shift_right_logical", prepare_integer<ShiftRightLogical>},
    {"subtract", prepare_subtract},
    {"xor", prepare_bitwise<&at::cpu::bitwise_xor_out>},
    {"zeta", prepare_zeta},
};

}  // namespace

std::span<const KernelEntry> binary_kernels() { return kKernels; }

}  // namespace nxl::host
