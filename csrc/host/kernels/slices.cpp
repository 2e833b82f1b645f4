// SPDX-License-Identifier: Apache-2.0
// dynamic_slice, dynamic_update_slice, reverse: strided copies whose start is known only when they run.
#include <algorithm>

#include "host/kernels/index_value.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

// The start of a window inside a tensor, from one scalar per dimension, clamped so that the window fits.
class DynamicStart {
 public:
  DynamicStart(const StepContext& step, size_t first_input, const at::Tensor& tensor, at::IntArrayRef window) {
    const std::vector<int64_t> strides = byte_strides(tensor);
    for (size_t d = 0; d < strides.size(); ++d) {
      const at::Tensor& start = step.input(first_input + d);
      const std::string what = nxl::detail::concat("start ", d);
      step.expect_integral(start, what);
      step.expect_scalar(start, what);
      step.require(window[d] <= tensor.size(static_cast<int64_t>(d)), "the window has ", window[d],
                   " elements in dimension ", d, "; the tensor has ", tensor.size(static_cast<int64_t>(d)));
      const int64_t room = tensor.size(static_cast<int64_t>(d)) - window[d];
      if (room > 0) axes_.push_back({Address(start), start.scalar_type(), room, strides[d]});
    }
  }

  int64_t byte_offset() const {
    int64_t offset = 0;
    for (const Axis& axis : axes_) {
      offset += std::clamp<int64_t>(read_index(axis.start.get(), axis.dtype), 0, axis.room) * axis.stride;
    }
    return offset;
  }

 private:
  struct Axis {
    Address start;
    at::ScalarType dtype;
    int64_t room;    // largest start
    int64_t stride;  // bytes
  };
  std::vector<Axis> axes_;  // only those with a choice
};

Kernel prepare_dynamic_slice(StepContext& step) {
  step.require(step.num_inputs() >= 1 && step.num_outputs() == 1, "takes x and its starts, and gives one output");
  const at::Tensor &x = step.input(0), &y = step.output(0);
  step.expect(1 + static_cast<size_t>(x.dim()), 1);
  step.expect_same_dtype(x, y, "input 0");
  step.require(y.dim() == x.dim(), "the output has rank ", y.dim(), ", the operand ", x.dim());
  const auto width = static_cast<int64_t>(y.element_size());
  return
      [start = DynamicStart(step, 1, x, y.sizes()), nest = LoopNest<2>(y.sizes(), {byte_strides(y), byte_strides(x)}),
       to = Address(y), from = Address(x), width] {
        nest.run({to.get(), from.get() + start.byte_offset()},
                 [width](const auto& p, const auto& s, int64_t n) { copy_run(p[0], s[0], p[1], s[1], n, width); });
      };
}

Kernel prepare_dynamic_update_slice(StepContext& step) {
  step.require(step.num_inputs() >= 1 && step.num_outputs() == 1, "takes the update and its starts, and one target");
  const at::Tensor &update = step.input(0), &target = step.output(0);
  step.expect(1 + static_cast<size_t>(target.dim()), 1);
  step.expect_same_dtype(update, target, "input 0 (update)");
  step.require(update.dim() == target.dim(), "the update has rank ", update.dim(), ", the target ", target.dim());
  const auto width = static_cast<int64_t>(target.element_size());
  return [start = DynamicStart(step, 1, target, update.sizes()),
          nest = LoopNest<2>(update.sizes(), {byte_strides(target), byte_strides(update)}), to = Address(target),
          from = Address(update), width] {
    nest.run({to.get() + start.byte_offset(), from.get()},
             [width](const auto& p, const auto& s, int64_t n) { copy_run(p[0], s[0], p[1], s[1], n, width); });
  };
}

Kernel prepare_reverse(StepContext& step) {
  step.expect(1, 1);
  const at::Tensor &x = step.input(0), &y = step.output(0);
  step.expect_same_dtype(x, y, "input 0");
  step.expect_shape(x, y.sizes(), "input 0");
  std::vector<int64_t> strides = byte_strides(x);
  int64_t last = 0;  // bytes from x's first element to the one that comes first in y
  for (int64_t d : step.dimensions("dims", x.dim())) {
    int64_t& stride = strides[static_cast<size_t>(d)];
    if (x.size(d) > 0) last += stride * (x.size(d) - 1);
    stride = -stride;
  }
  const auto width = static_cast<int64_t>(y.element_size());
  return [nest = LoopNest<2>(y.sizes(), {byte_strides(y), strides}), to = Address(y), from = Address(x), last, width] {
    nest.run({to.get(), from.get() + last},
             [width](const auto& p, const auto& s, int64_t n) { copy_run(p[0], s[0], p[1], s[1], n, width); });
  };
}

constexpr KernelEntry kKernels[] = {{"dynamic_slice", prepare_dynamic_slice},
                                    {"dynamic_update_slice", prepare_dynamic_update_slice},
                                    {"reverse", prepare_reverse}};

}  // namespace

std::span<const KernelEntry> slice_kernels() { return kKernels; }

}  // namespace nxl::host
