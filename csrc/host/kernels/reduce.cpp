// SPDX-License-Identifier: Apache-2.0
// reduce and argreduce.
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax_cpu_dispatch.h>
#include <ATen/ops/amin_cpu_dispatch.h>
#include <ATen/ops/sum_cpu_dispatch.h>

#include <algorithm>
#include <optional>

#include "host/kernels/combine.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

// The dims of x apart: those that stay (with y's strides beside) and those that go.
struct Split {
  std::vector<int64_t> kept_sizes, reduced_sizes;
  std::array<std::vector<int64_t>, 2> kept_strides;     // y, x; bytes
  std::array<std::vector<int64_t>, 1> reduced_strides;  // x; bytes
};

Split split(const StepContext& step, const at::Tensor& x, const at::Tensor& y, const std::vector<int64_t>& dims) {
  Split result;
  const auto x_strides = byte_strides(x), y_strides = byte_strides(y);
  std::vector<int64_t> expected;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) {
      result.reduced_sizes.push_back(x.size(d));
      result.reduced_strides[0].push_back(x_strides[static_cast<size_t>(d)]);
    } else {
      expected.push_back(x.size(d));
    }
  }
  step.expect_shape(y, expected, "output 0");
  size_t kept = 0;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
    result.kept_sizes.push_back(x.size(d));
    result.kept_strides[0].push_back(y_strides[kept++]);
    result.kept_strides[1].push_back(x_strides[static_cast<size_t>(d)]);
  }
  return result;
}

template <typename T, typename Op>
Kernel reduce_loop(const Split& split, const at::Tensor& x, const at::Tensor& init, const at::Tensor& y) {
  const LoopNest<2> kept(split.kept_sizes, split.kept_strides);
  const LoopNest<1> reduced(split.reduced_sizes, split.reduced_strides);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, reduced.count()));
  return [kept, reduced, grain, from = Address(x), start = Address(init), to = Address(y)] {
    using W = accumulator_t<T>;
    const W first = static_cast<W>(*reinterpret_cast<const T*>(start.get()));
    kept.run(
        {to.get(), from.get()},
        [&](auto p, const auto& s, int64_t n) {
          for (int64_t i = 0; i < n; ++i, p[0] += s[0], p[1] += s[1]) {
            W total = first;
            reduced.run_serial({p[1]}, [&](const auto& q, const auto& t, int64_t m) {
              for (int64_t j = 0; j < m; ++j) {
                total = Op::template apply<W>(total, static_cast<W>(*reinterpret_cast<const T*>(q[0] + j * t[0])));
              }
            });
            *reinterpret_cast<T*>(p[0]) = static_cast<T>(total);
          }
        },
        grain);
  };
}

// True when combining with init changes nothing, decided from the constant itself.
bool is_identity(const StepContext& step, Combine combine) {
  if (!step.is_constant(1)) return false;
  const at::Tensor& init = step.input(1);
  bool identity = false;
  visit_type(RealTypes{}, init.scalar_type(), [&]<typename T>() {
    using W = accumulator_t<T>;
    const W value = static_cast<W>(*reinterpret_cast<const T*>(Address(init).get()));
    constexpr bool has_infinity = std::numeric_limits<W>::has_infinity;
    switch (combine) {
      case Combine::kAdd:
        identity = value == W(0);
        break;
      case Combine::kMaximum:
        identity = value == (has_infinity ? -std::numeric_limits<W>::infinity()
                                          : static_cast<W>(std::numeric_limits<T>::lowest()));
        break;
      case Combine::kMinimum:
        identity = value ==
                   (has_infinity ? std::numeric_limits<W>::infinity() : static_cast<W>(std::numeric_limits<T>::max()));
        break;
      default:
        break;
    }
  });
  return identity;
}

// ATen's vectorised reductions, for the float types and the kinds where they mean the same; null when they do not fit.
Kernel aten_reduce(const StepContext& step, Combine combine, const std::vector<int64_t>& dims) {
  const at::Tensor &x = step.input(0), &y = step.output(0);
  if (!is_float(x.scalar_type()) || x.numel() == 0 || dims.empty() || !is_identity(step, combine)) return {};
  switch (combine) {
    case Combine::kAdd:
      return [x = x, y = y, dims]() mutable { at::cpu::sum_out(y, x, dims, /*keepdim=*/false, std::nullopt); };
    case Combine::kMaximum:
      return [x = x, y = y, dims]() mutable { at::cpu::amax_out(y, x, dims, /*keepdim=*/false); };
    case Combine::kMinimum:
      return [x = x, y = y, dims]() mutable { at::cpu::amin_out(y, x, dims, /*keepdim=*/false); };
    default:
      return {};
  }
}

Kernel prepare_reduce(StepContext& step) {
  step.expect(2, 1);
  const at::Tensor &x = step.input(0), &init = step.input(1), &y = step.output(0);
  step.expect_same_dtype(x, y, "input 0");
  step.expect_same_dtype(init, y, "input 1 (init)");
  step.expect_scalar(init, "input 1 (init)");
  const std::vector<int64_t> dims = step.dimensions("dims", x.dim());
  const Split parts = split(step, x, y, dims);
  const Combine combine = combine_of(step);
  if (Kernel fast = aten_reduce(step, combine, dims)) return fast;
  Kernel kernel;
  visit_combine(step, combine, y.scalar_type(),
                [&]<typename T, typename Op>() { kernel = reduce_loop<T, Op>(parts, x, init, y); });
  return kernel;
}

template <typename T, bool largest>
bool beats(T challenger, T best) {
  if (is_nan(best)) return false;
  if (is_nan(challenger)) return true;
  return largest ? challenger > best : challenger < best;
}

template <typename T, typename Index, bool largest>
Kernel argreduce_loop(const Split& split, const at::Tensor& x, const at::Tensor& value, const at::Tensor& index) {
  std::array<std::vector<int64_t>, 3> strides{split.kept_strides[0], split.kept_strides[1], byte_strides(index)};
  const LoopNest<3> kept(split.kept_sizes, strides);
  const int64_t size = split.reduced_sizes[0], stride = split.reduced_strides[0][0];
  const int64_t grain = std::max<int64_t>(1, kGrain / size);
  return [kept, size, stride, grain, from = Address(x), to = Address(value), at = Address(index)] {
    using W = accumulator_t<T>;
    kept.run(
        {to.get(), from.get(), at.get()},
        [&](auto p, const auto& s, int64_t n) {
          for (int64_t i = 0; i < n; ++i, p[0] += s[0], p[1] += s[1], p[2] += s[2]) {
            W best = static_cast<W>(*reinterpret_cast<const T*>(p[1]));
            int64_t where = 0;
            for (int64_t j = 1; j < size; ++j) {
              const W challenger = static_cast<W>(*reinterpret_cast<const T*>(p[1] + j * stride));
              if (beats<W, largest>(challenger, best)) {
                best = challenger;
                where = j;
              }
            }
            *reinterpret_cast<T*>(p[0]) = static_cast<T>(best);
            *reinterpret_cast<Index*>(p[2]) = static_cast<Index>(where);
          }
        },
        grain);
  };
}

Kernel prepare_argreduce(StepContext& step) {
  step.expect(1, 2);
  const at::Tensor &x = step.input(0), &value = step.output(0), &index = step.output(1);
  step.expect_same_dtype(value, x, "output 0 (value)");
  const int64_t dim = step.dimension("dim", x.dim());
  const Split parts = split(step, x, value, {dim});
  step.expect_shape(index, value.sizes(), "output 1 (index)");
  const std::string kind = step.text("kind");
  step.require(kind == "max" || kind == "min", "attribute `kind` is `", kind, "`; known are max and min");
  step.require(x.size(dim) > 0 || value.numel() == 0, "dimension ", dim, " has no elements to choose from");
  if (value.numel() == 0) return [] {};
  Kernel kernel;
  visit_type(Concat<RealTypes, Float8Types>{}, x.scalar_type(), [&]<typename T>() {
    visit_type(Types<int32_t, int64_t>{}, index.scalar_type(), [&]<typename Index>() {
      kernel = kind == "max" ? argreduce_loop<T, Index, true>(parts, x, value, index)
                             : argreduce_loop<T, Index, false>(parts, x, value, index);
    });
  });
  if (!kernel) step.unsupported("needs an ordered dtype and an index of i32 or i64");
  return kernel;
}

constexpr KernelEntry kKernels[] = {{"argreduce", prepare_argreduce}, {"reduce", prepare_reduce}};

}  // namespace

std::span<const KernelEntry> reduce_kernels() { return kKernels; }

}  // namespace nxl::host
