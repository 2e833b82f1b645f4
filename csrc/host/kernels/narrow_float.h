// SPDX-License-Identifier: Apache-2.0
// Elementwise ATen kernels for types they lack: the operands pass through f32 and the result is rounded once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/copy_native.h>

#include <vector>

#include "host/kernels/step_context.h"

namespace nxl::host {

// `compute(out, inputs)` runs on f32 copies of the inputs; its f32 result is rounded into `out`.
template <typename Compute>
Kernel through_float(const at::Tensor& out, std::vector<at::Tensor> inputs, Compute compute) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& input : inputs) wide.push_back(StepContext::scratch(input.sizes(), at::kFloat));
  at::Tensor wide_out = StepContext::scratch(out.sizes(), at::kFloat);
  return [out = out, inputs = std::move(inputs), wide, wide_out, compute]() mutable {
    for (size_t i = 0; i < inputs.size(); ++i) at::native::copy_(wide[i], inputs[i]);
    compute(wide_out, wide);
    at::native::copy_(out, wide_out);
  };
}

}  // namespace nxl::host
