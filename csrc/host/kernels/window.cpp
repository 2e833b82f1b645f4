// SPDX-License-Identifier: Apache-2.0
// reduce_window: pooling and windowed sums, with padding and both dilations.
#include <algorithm>
#include <numeric>

#include "host/kernels/combine.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"
#include "host/kernels/window_geometry.h"

namespace nxl::host {

namespace {

// For one dimension and one output position: the elements of x that the window touches there, an arithmetic series.
struct Taps {
  int64_t first = 0;  // bytes from x's start
  int64_t count = 0;
};

struct Axis {
  std::vector<Taps> taps;  // by output position
  int64_t step = 0;        // bytes from one tap to the next
};

Axis axis_of(const WindowDim& dim, int64_t input_size, int64_t output_size, int64_t stride) {
  // Window positions that fall on elements, not between them, repeat with this period.
  const int64_t period = dim.base_dilation / std::gcd(dim.base_dilation, dim.window_dilation);
  Axis axis;
  axis.step = period * dim.window_dilation / dim.base_dilation * stride;
  const int64_t dilated = dilated_size(input_size, dim.base_dilation);
  axis.taps.resize(static_cast<size_t>(output_size));
  for (int64_t o = 0; o < output_size; ++o) {
    // Window positions w with 0 <= start + w * window_dilation < dilated.
    const int64_t start = o * dim.stride - dim.low;
    const int64_t last =
        dilated - 1 - start < 0 ? -1 : std::min(dim.size - 1, (dilated - 1 - start) / dim.window_dilation);
    int64_t w = start >= 0 ? 0 : (-start + dim.window_dilation - 1) / dim.window_dilation;
    while (w <= last && (start + w * dim.window_dilation) % dim.base_dilation != 0) ++w;
    if (w > last) continue;
    axis.taps[static_cast<size_t>(o)] = {(start + w * dim.window_dilation) / dim.base_dilation * stride,
                                         (last - w) / period + 1};
  }
  return axis;
}

template <typename T, typename Op>
struct WindowSum {
  using W = accumulator_t<T>;
  const std::vector<Axis>& axes;

  void visit(size_t axis, const Taps* const* taps, const char* x, W& total) const {
    const Taps& here = *taps[axis];
    x += here.first;
    const int64_t step = axes[axis].step;
    if (axis + 1 == axes.size()) {
      for (int64_t i = 0; i < here.count; ++i) {
        total = Op::template apply<W>(total, static_cast<W>(*reinterpret_cast<const T*>(x + i * step)));
      }
      return;
    }
    for (int64_t i = 0; i < here.count; ++i) visit(axis + 1, taps, x + i * step, total);
  }
};

template <typename T, typename Op>
Kernel window_loop(std::vector<Axis> axes, const at::Tensor& x, const at::Tensor& init, const at::Tensor& y) {
  int64_t window = 1;
  for (const Axis& axis : axes) {
    int64_t most = 1;
    for (const Taps& taps : axis.taps) most = std::max(most, taps.count);
    window *= most;
  }
  return [axes = std::move(axes), from = Address(x), start = Address(init), to = Address(y), sizes = y.sizes().vec(),
          strides = byte_strides(y), count = y.numel(), grain = std::max<int64_t>(1, kGrain / window)] {
    using W = accumulator_t<T>;
    const W first = static_cast<W>(*reinterpret_cast<const T*>(start.get()));
    const char* x = from.get();
    char* y = to.get();
    const WindowSum<T, Op> sum{axes};
    at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
      std::array<const Taps*, kMaxRank + 1> taps{};
      for (int64_t linear = begin; linear < end; ++linear) {
        int64_t rest = linear, offset = 0;
        for (size_t d = sizes.size(); d-- > 0;) {
          const int64_t at = rest % sizes[d];
          rest /= sizes[d];
          offset += at * strides[d];
          taps[d] = &axes[d].taps[static_cast<size_t>(at)];
        }
        W total = first;
        sum.visit(0, taps.data(), x, total);
        *reinterpret_cast<T*>(y + offset) = static_cast<T>(total);
      }
    });
  };
}

Kernel prepare_reduce_window(StepContext& step) {
  step.expect(2, 1);
  const at::Tensor &x = step.input(0), &init = step.input(1), &y = step.output(0);
  step.expect_same_dtype(x, y, "input 0");
  step.expect_same_dtype(init, y, "input 1 (init)");
  step.expect_scalar(init, "input 1 (init)");
  const auto rank = static_cast<size_t>(x.dim());
  step.require(rank <= kMaxRank, "rank ", rank, "; the limit is ", kMaxRank);
  const std::vector<WindowDim> dims = window_dims(step, step.integers("window_dimensions"), rank, "window_strides",
                                                  "base_dilations", "window_dilations");
  std::vector<int64_t> shape;
  for (size_t d = 0; d < rank; ++d) shape.push_back(windowed_size(dims[d], x.size(static_cast<int64_t>(d))));
  step.expect_shape(y, shape, "output 0");
  if (y.numel() == 0) return [] {};
  const std::vector<int64_t> strides = byte_strides(x);
  std::vector<Axis> axes;
  for (size_t d = 0; d < rank; ++d) {
    axes.push_back(axis_of(dims[d], x.size(static_cast<int64_t>(d)), shape[d], strides[d]));
  }
  at::Tensor to = y;
  if (axes.empty()) {  // a scalar is one position with one tap
    axes.push_back({{{0, 1}}, 0});
    to = rewindow(y, {1}, {0}, y.storage_offset());
  }
  Kernel kernel;
  visit_combine(step, combine_of(step), y.scalar_type(),
                [&]<typename T, typename Op>() { kernel = window_loop<T, Op>(axes, x, init, to); });
  return kernel;
}

constexpr KernelEntry kKernels[] = {{"reduce_window", prepare_reduce_window}};

}  // namespace

std::span<const KernelEntry> window_kernels() { return kKernels; }

}  // namespace nxl::host
