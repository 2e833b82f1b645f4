// SPDX-License-Identifier: Apache-2.0
// cumulative: running sums, products, maxima and minima along one dimension.
#include "host/kernels/combine.h"
#include "host/kernels/lines.h"
#include "host/kernels/registry.h"

namespace nxl::host {

namespace {

template <typename T, typename Op>
Kernel cumulative_loop(const at::Tensor& x, const at::Tensor& y, int64_t dim, bool reverse) {
  return [lines = Lines<2>({y, x}, dim), reverse] {
    lines.run([&](const auto& p, const auto& s, int64_t n) {
      using W = accumulator_t<T>;
      W total{};
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = reverse ? n - 1 - i : i;
        const W value = static_cast<W>(*reinterpret_cast<const T*>(p[1] + at * s[1]));
        total = i == 0 ? value : Op::template apply<W>(total, value);
        *reinterpret_cast<T*>(p[0] + at * s[0]) = static_cast<T>(total);
      }
    });
  };
}

Kernel prepare_cumulative(StepContext& step) {
  step.expect(1, 1);
  const at::Tensor &x = step.input(0), &y = step.output(0);
  step.expect_same_dtype(x, y, "input 0");
  step.expect_shape(x, y.sizes(), "input 0");
  const int64_t dim = step.dimension("dim", x.dim());
  const bool reverse = step.boolean_or("reverse", false);
  const Combine combine = combine_of(step);
  if (y.numel() == 0) return [] {};
  Kernel kernel;
  visit_combine(step, combine, y.scalar_type(),
                [&]<typename T, typename Op>() { kernel = cumulative_loop<T, Op>(x, y, dim, reverse); });
  return kernel;
}

constexpr KernelEntry kKernels[] = {{"cumulative", prepare_cumulative}};

}  // namespace

std::span<const KernelEntry> cumulative_kernels() { return kKernels; }

}  // namespace nxl::host
