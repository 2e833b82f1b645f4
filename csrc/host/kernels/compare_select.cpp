// SPDX-License-Identifier: Apache-2.0
// compare, select, clamp.
#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp_cpu_dispatch.h>
#include <ATen/ops/eq_cpu_dispatch.h>
#include <ATen/ops/ge_cpu_dispatch.h>
#include <ATen/ops/gt_cpu_dispatch.h>
#include <ATen/ops/le_cpu_dispatch.h>
#include <ATen/ops/lt_cpu_dispatch.h>
#include <ATen/ops/ne_cpu_dispatch.h>
#include <ATen/ops/where_native.h>

#include <bit>

#include "host/kernels/dtype_map.h"
#include "host/kernels/narrow_float.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

using AtenCompare = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&);

enum class Direction { kEq, kNe, kGe, kGt, kLe, kLt };

Direction direction_of(const StepContext& step) {
  const std::string text = step.text("direction");
  if (text == "EQ") return Direction::kEq;
  if (text == "NE") return Direction::kNe;
  if (text == "GE") return Direction::kGe;
  if (text == "GT") return Direction::kGt;
  if (text == "LE") return Direction::kLe;
  if (text == "LT") return Direction::kLt;
  step.fail(ErrorKind::kInvalid, "attribute `direction` is `" + text + "`; known are EQ NE GE GT LE LT");
}

AtenCompare aten_compare(Direction direction) {
  switch (direction) {
    case Direction::kEq:
      return &at::cpu::eq_out;
    case Direction::kNe:
      return &at::cpu::ne_out;
    case Direction::kGe:
      return &at::cpu::ge_out;
    case Direction::kGt:
      return &at::cpu::gt_out;
    case Direction::kLe:
      return &at::cpu::le_out;
    case Direction::kLt:
      return &at::cpu::lt_out;
  }
  throw_error(ErrorKind::kInternal, "comparison out of range");
}

// Calls visit with a functor over two ordered values.
template <typename Visit>
Kernel visit_direction(Direction direction, Visit visit) {
  switch (direction) {
    case Direction::kEq:
      return visit([](auto a, auto b) { return a == b; });
    case Direction::kNe:
      return visit([](auto a, auto b) { return a != b; });
    case Direction::kGe:
      return visit([](auto a, auto b) { return a >= b; });
    case Direction::kGt:
      return visit([](auto a, auto b) { return a > b; });
    case Direction::kLe:
      return visit([](auto a, auto b) { return a <= b; });
    case Direction::kLt:
      return visit([](auto a, auto b) { return a < b; });
  }
  throw_error(ErrorKind::kInternal, "comparison out of range");
}

template <size_t width>
using SignedOfWidth =
    std::conditional_t<width == 1, int8_t,
                       std::conditional_t<width == 2, int16_t, std::conditional_t<width == 4, int32_t, int64_t>>>;

// IEEE 754's total order as an order of integers: -NaN < -inf < ... < -0 < +0 < ... < +inf < +NaN.
template <typename T>
auto total_order_key(T x) {
  using Bits = SignedOfWidth<sizeof(T)>;
  const Bits bits = std::bit_cast<Bits>(x);
  return static_cast<Bits>(bits < 0 ? bits ^ std::numeric_limits<Bits>::max() : bits);
}

Kernel prepare_compare(StepContext& step) {
  step.expect(2, 1);
  const at::Tensor &a = step.input(0), &b = step.input(1), &y = step.output(0);
  step.expect_shape(a, y.sizes(), "input 0");
  step.expect_shape(b, y.sizes(), "input 1");
  step.expect_same_dtype(b, a, "input 1");
  step.expect_dtype(y, at::kBool, "output 0");
  const Direction direction = direction_of(step);
  const at::ScalarType dtype = a.scalar_type();
  const Json* type = step.find("type");
  if (type != nullptr && type->is_string() && type->as_string("type") == "TOTALORDER") {
    Kernel kernel;
    visit_type(AllFloatTypes{}, dtype, [&]<typename T>() {
      kernel = visit_direction(direction, [&](auto test) {
        return elementwise_loop<bool, T, T>(y, {a, b},
                                            [test](T p, T q) { return test(total_order_key(p), total_order_key(q)); });
      });
    });
    if (!kernel) step.unsupported("TOTALORDER is for float dtypes");
    return kernel;
  }
  if (is_unsigned_wide(dtype)) {
    Kernel kernel;
    visit_type(UnsignedTypes{}, dtype, [&]<typename T>() {
      kernel = visit_direction(direction, [&](auto test) {
        return elementwise_loop<bool, T, T>(y, {a, b}, [test](T p, T q) { return test(p, q); });
      });
    });
    return kernel;
  }
  if (c10::isComplexType(dtype) && direction != Direction::kEq && direction != Direction::kNe) {
    step.unsupported("complex numbers compare with EQ and NE only");
  }
  if (c10::isFloat8Type(dtype)) {
    Kernel kernel;
    visit_type(Float8Types{}, dtype, [&]<typename T>() {
      kernel = visit_direction(direction, [&](auto test) {
        return elementwise_loop<bool, T, T>(
            y, {a, b}, [test](T p, T q) { return test(static_cast<float>(p), static_cast<float>(q)); });
      });
    });
    return kernel;
  }
  return [y = y, a = a, b = b, compare = aten_compare(direction)]() mutable { compare(y, a, b); };
}

// A scalar operand spreads over the output's shape.
at::Tensor spread(const StepContext& step, const at::Tensor& x, const at::Tensor& y, std::string_view what) {
  if (x.dim() == 0 && y.dim() != 0) {
    const std::vector<int64_t> strides(static_cast<size_t>(y.dim()), 0);
    return rewindow(x, y.sizes(), strides, x.storage_offset());
  }
  step.expect_shape(x, y.sizes(), what);
  return x;
}

Kernel prepare_select(StepContext& step) {
  step.expect(3, 1);
  const at::Tensor& y = step.output(0);
  step.expect_dtype(step.input(0), at::kBool, "input 0 (pred)");
  step.expect_same_dtype(step.input(1), y, "input 1");
  step.expect_same_dtype(step.input(2), y, "input 2");
  step.expect_shape(step.input(1), y.sizes(), "input 1");
  step.expect_shape(step.input(2), y.sizes(), "input 2");
  const at::Tensor pred = spread(step, step.input(0), y, "input 0 (pred)");
  // Only bits move, so types ATen's kernel lacks go as integers of their width.
  at::ScalarType dtype = signed_twin(y.scalar_type());
  if (c10::isFloat8Type(dtype)) dtype = at::kByte;
  return [y = reinterpret(y, dtype), pred, a = reinterpret(step.input(1), dtype),
          b = reinterpret(step.input(2), dtype)]() mutable { at::native::where_self_out(pred, a, b, y); };
}

Kernel prepare_clamp(StepContext& step) {
  step.expect(3, 1);
  const at::Tensor &x = step.input(1), &y = step.output(0);
  step.expect_shape(x, y.sizes(), "input 1 (x)");
  for (size_t i = 0; i < 3; ++i) step.expect_same_dtype(step.input(i), y, nxl::detail::concat("input ", i));
  const at::Tensor low = spread(step, step.input(0), y, "input 0 (min)");
  const at::Tensor high = spread(step, step.input(2), y, "input 2 (max)");
  const at::ScalarType dtype = y.scalar_type();
  if (c10::isComplexType(dtype)) step.unsupported("clamp is not defined for complex numbers");
  if (is_unsigned_wide(dtype) || dtype == at::kBool) {
    Kernel kernel;
    visit_type(Concat<UnsignedTypes, BoolType>{}, dtype, [&]<typename T>() {
      kernel = elementwise_loop<T, T, T, T>(y, {low, x, high}, [](T lo, T v, T hi) {
        const T raised = v < lo ? lo : v;
        return hi < raised ? hi : raised;
      });
    });
    return kernel;
  }
  if (c10::isFloat8Type(dtype)) {
    return through_float(y, {low, x, high}, [](at::Tensor& out, const std::vector<at::Tensor>& in) {
      at::cpu::clamp_out(out, in[1], in[0], in[2]);
    });
  }
  return [y = y, x = x, low = std::optional<at::Tensor>(low), high = std::optional<at::Tensor>(high)]() mutable {
    at::cpu::clamp_out(y, x, low, high);
  };
}

constexpr KernelEntry kKernels[] = {{"clamp", prepare_clamp}, {"compare", prepare_compare}, {"select", prepare_select}};

}  // namespace

std::span<const KernelEntry> compare_select_kernels() { return kKernels; }

}  // namespace nxl::host
