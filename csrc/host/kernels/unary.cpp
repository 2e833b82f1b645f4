// SPDX-License-Identifier: Apache-2.0
// Elementwise ops of one operand.
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/acos_cpu_dispatch.h>
#include <ATen/ops/acosh_cpu_dispatch.h>
#include <ATen/ops/asin_cpu_dispatch.h>
#include <ATen/ops/asinh_cpu_dispatch.h>
#include <ATen/ops/atan_cpu_dispatch.h>
#include <ATen/ops/atanh_cpu_dispatch.h>
#include <ATen/ops/bitwise_not_cpu_dispatch.h>
#include <ATen/ops/ceil_cpu_dispatch.h>
#include <ATen/ops/cos_cpu_dispatch.h>
#include <ATen/ops/cosh_cpu_dispatch.h>
#include <ATen/ops/digamma_cpu_dispatch.h>
#include <ATen/ops/erf_cpu_dispatch.h>
#include <ATen/ops/erfc_cpu_dispatch.h>
#include <ATen/ops/erfinv_cpu_dispatch.h>
#include <ATen/ops/exp_cpu_dispatch.h>
#include <ATen/ops/expm1_cpu_dispatch.h>
#include <ATen/ops/floor_cpu_dispatch.h>
#include <ATen/ops/lgamma_cpu_dispatch.h>
#include <ATen/ops/log1p_cpu_dispatch.h>
#include <ATen/ops/log_cpu_dispatch.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/round_cpu_dispatch.h>
#include <ATen/ops/rsqrt_cpu_dispatch.h>
#include <ATen/ops/sgn_cpu_dispatch.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/sin_cpu_dispatch.h>
#include <ATen/ops/sinh_cpu_dispatch.h>
#include <ATen/ops/special_i1e_cpu_dispatch.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>
#include <ATen/ops/tan_cpu_dispatch.h>
#include <ATen/ops/tanh_cpu_dispatch.h>

#include <bit>
#include <cmath>

#include "host/kernels/dtype_map.h"
#include "host/kernels/narrow_float.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

using AtenUnary = at::Tensor& (*)(at::Tensor&, const at::Tensor&);

enum Kinds : uint8_t { kFloats = 1, kComplexes = 2, kSignedIntegers = 4, kUnsignedIntegers = 8, kBools = 16 };

// y has x's shape and, unless the op says otherwise, its dtype.
void check_operands(StepContext& step) {
  step.expect(1, 1);
  step.expect_shape(step.input(0), step.output(0).sizes(), "input 0");
}

[[noreturn]] void refuse_dtype(StepContext& step, at::ScalarType dtype) {
  step.unsupported(nxl::detail::concat("not defined for dtype ", c10::toString(dtype)));
}

uint8_t kind_of(at::ScalarType dtype) {
  if (dtype == at::kBool) return kBools;
  if (c10::isComplexType(dtype)) return kComplexes;
  if (c10::isFloatingType(dtype)) return kFloats;
  return dtype == at::kByte || is_unsigned_wide(dtype) ? kUnsignedIntegers : kSignedIntegers;
}

template <AtenUnary function, uint8_t kinds>
Kernel prepare_aten(StepContext& step) {
  check_operands(step);
  const at::ScalarType dtype = step.output(0).scalar_type();
  step.expect_dtype(step.input(0), dtype, "input 0");
  if ((kinds & kind_of(dtype)) == 0) refuse_dtype(step, dtype);
  if (c10::isFloat8Type(dtype)) {
    return through_float(step.output(0), {step.input(0)},
                         [](at::Tensor& y, const std::vector<at::Tensor>& x) { function(y, x[0]); });
  }
  return [y = reinterpret(step.output(0), signed_twin(dtype)),
          x = reinterpret(step.input(0), signed_twin(dtype))]() mutable { function(y, x); };
}

// The loop of `Op::apply<T>` over the types of `List`.
template <typename List, typename Op>
Kernel prepare_loop(StepContext& step) {
  check_operands(step);
  const at::ScalarType dtype = step.output(0).scalar_type();
  step.expect_dtype(step.input(0), dtype, "input 0");
  Kernel kernel;
  visit_type(List{}, dtype, [&]<typename T>() {
    kernel = elementwise_loop<T, T>(step.output(0), {step.input(0)}, [](T x) { return Op::template apply<T>(x); });
  });
  if (!kernel) refuse_dtype(step, dtype);
  return kernel;
}

// Half types compute in f32 and round once.
template <typename T>
using wide_t = accumulator_t<T>;

struct Cbrt {
  template <typename T>
  static T apply(T x) {
    return static_cast<T>(std::cbrt(static_cast<wide_t<T>>(x)));
  }
};

struct RoundAwayFromZero {
  template <typename T>
  static T apply(T x) {
    return static_cast<T>(std::round(static_cast<wide_t<T>>(x)));
  }
};

// NaN gives NaN and a signed zero itself; ATen's sign gives 0 for both.
struct Sign {
  template <typename T>
  static T apply(T x) {
    if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_unsigned_v<T>) return x != 0;
      return static_cast<T>((x > 0) - (x < 0));
    } else {
      const auto wide = static_cast<wide_t<T>>(x);
      if (wide != wide || wide == 0) return x;
      return static_cast<T>(wide > 0 ? 1.0f : -1.0f);
    }
  }
};

struct PopulationCount {
  template <typename T>
  static T apply(T x) {
    return static_cast<T>(std::popcount(static_cast<std::make_unsigned_t<T>>(x)));
  }
};

struct CountLeadingZeros {
  template <typename T>
  static T apply(T x) {
    return static_cast<T>(std::countl_zero(static_cast<std::make_unsigned_t<T>>(x)));
  }
};

struct UnsignedItself {
  template <typename T>
  static T apply(T x) {
    return x;
  }
};

Kernel prepare_abs(StepContext& step) {
  check_operands(step);
  const at::ScalarType dtype = step.input(0).scalar_type();
  switch (kind_of(dtype)) {
    case kUnsignedIntegers:
      return prepare_loop<UnsignedTypes, UnsignedItself>(step);
    case kBools:
      refuse_dtype(step, dtype);
    case kComplexes:
      step.expect_dtype(step.output(0), c10::toRealValueType(dtype), "output 0");
      return [y = step.output(0), x = step.input(0)]() mutable { at::native::abs_out(x, y); };
    default:
      step.expect_dtype(step.output(0), dtype, "output 0");
      if (c10::isFloat8Type(dtype)) {
        return through_float(step.output(0), {step.input(0)},
                             [](at::Tensor& y, const std::vector<at::Tensor>& x) { at::native::abs_out(x[0], y); });
      }
      return [y = step.output(0), x = step.input(0)]() mutable { at::native::abs_out(x, y); };
  }
}

Kernel prepare_sign(StepContext& step) {
  if (step.num_outputs() == 1 && c10::isComplexType(step.output(0).scalar_type())) {
    return prepare_aten<&at::cpu::sgn_out, kComplexes>(step);
  }
  return prepare_loop<Concat<IntegerTypes, AllFloatTypes>, Sign>(step);
}

template <typename Test>
Kernel prepare_test(StepContext& step) {
  check_operands(step);
  step.expect_dtype(step.output(0), at::kBool, "output 0");
  Kernel kernel;
  visit_type(AllFloatTypes{}, step.input(0).scalar_type(), [&]<typename T>() {
    kernel = elementwise_loop<bool, T>(step.output(0), {step.input(0)}, [](T x) {
      if constexpr (std::is_same_v<T, double>) {
        return Test::apply(x);
      } else {
        return Test::apply(static_cast<float>(x));
      }
    });
  });
  if (!kernel) refuse_dtype(step, step.input(0).scalar_type());
  return kernel;
}

struct IsFinite {
  static bool apply(auto x) { return std::isfinite(x); }
};
struct IsInf {
  static bool apply(auto x) { return std::isinf(x); }
};
struct IsPosInf {
  static bool apply(auto x) { return std::isinf(x) && x > 0; }
};
struct IsNegInf {
  static bool apply(auto x) { return std::isinf(x) && x < 0; }
};

constexpr uint8_t kMath = kFloats | kComplexes;

constexpr KernelEntry kKernels[] = {
    {"abs", prepare_abs},
    {"acos", prepare_aten<&at::cpu::acos_out, kMath>},
    {"acosh", prepare_aten<&at::cpu::acosh_out, kMath>},
    {"asin", prepare_aten<&at::cpu::asin_out, kMath>},
    {"asinh", prepare_aten<&at::cpu::asinh_out, kMath>},
    {"atan", prepare_aten<&at::cpu::atan_out, kMath>},
    {"atanh", prepare_aten<&at::cpu::atanh_out, kMath>},
    {"bessel_i1e", prepare_aten<&at::cpu::special_i1e_out, kFloats>},
    {"cbrt", prepare_loop<AllFloatTypes, Cbrt>},
    {"ceil", prepare_aten<&at::cpu::ceil_out, kFloats>},
    {"cosh", prepare_aten<&at::cpu::cosh_out, kMath>},
    {"cosine", prepare_aten<&at::cpu::cos_out, kMath>},
    {"count_leading_zeros", prepare_loop<IntegerTypes, CountLeadingZeros>},
    {"digamma", prepare_aten<&at::cpu::digamma_out, kFloats>},
    {"erf", prepare_aten<&at::cpu::erf_out, kFloats>},
    {"erf_inv", prepare_aten<&at::cpu::erfinv_out, kFloats>},
    {"erfc", prepare_aten<&at::cpu::erfc_out, kFloats>},
    {"exponential", prepare_aten<&at::cpu::exp_out, kMath>},
    {"exponential_minus_one", prepare_aten<&at::cpu::expm1_out, kMath>},
    {"floor", prepare_aten<&at::cpu::floor_out, kFloats>},
    {"is_finite", prepare_test<IsFinite>},
    {"is_inf", prepare_test<IsInf>},
    {"is_neg_inf", prepare_test<IsNegInf>},
    {"is_pos_inf", prepare_test<IsPosInf>},
    {"lgamma", prepare_aten<&at::cpu::lgamma_out, kFloats>},
    {"log", prepare_aten<&at::cpu::log_out, kMath>},
    {"log_plus_one", prepare_aten<&at::cpu::log1p_out, kMath>},
    {"logistic", prepare_aten<&at::cpu::sigmoid_out, kMath>},
    {"negate", prepare_aten<&at::cpu::neg_out, kMath | kSignedIntegers | kUnsignedIntegers>},
    {"not", prepare_aten<&at::cpu::bitwise_not_out, kSignedIntegers | kUnsignedIntegers | kBools>},
    {"popcnt", prepare_loop<IntegerTypes, PopulationCount>},
    {"round_nearest_afz", prepare_loop<AllFloatTypes, RoundAwayFromZero>},
    {"round_nearest_even", prepare_aten<&at::cpu::round_out, kFloats>},
    {"rsqrt", prepare_aten<&at::cpu::rsqrt_out, kMath>},
    {"sign", prepare_sign},
    {"sine", prepare_aten<&at::cpu::sin_out, kMath>},
    {"sinh", prepare_aten<&at::cpu::sinh_out, kMath>},
    {"sqrt", prepare_aten<&at::cpu::sqrt_out, kMath>},
    {"tan", prepare_aten<&at::cpu::tan_out, kMath>},
    {"tanh", prepare_aten<&at::cpu::tanh_out, kMath>},
};

}  // namespace

std::span<const KernelEntry> unary_kernels() { return kKernels; }

}  // namespace nxl::host
