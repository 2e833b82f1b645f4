// SPDX-License-Identifier: Apache-2.0
// Collectives: the step's memory handed to host/collectives, dense.
#include "host/kernels/collectives.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/copy_native.h>

#include <utility>

namespace nxl::host {

namespace {

// Memory of this step for a window with gaps.
at::Tensor dense_twin(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : StepContext::scratch(tensor.sizes(), tensor.scalar_type());
}

}  // namespace

Kernel prepare_collective(const StepContext& step, std::shared_ptr<Collective> collective) {
  at::Tensor x = step.input(0);
  at::Tensor y = step.output(0);
  at::Tensor in = dense_twin(x);
  at::Tensor out = dense_twin(y);
  return [collective = std::move(collective), x, y, in, out]() mutable {
    if (!in.is_same(x)) at::native::copy_(in, x);
    collective->run(static_cast<const std::byte*>(in.const_data_ptr()),
                    static_cast<std::byte*>(out.mutable_data_ptr()));
    if (!out.is_same(y)) at::native::copy_(y, out);
  };
}

}  // namespace nxl::host
