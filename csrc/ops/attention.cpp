// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention takes the path that CPU tensors would take, so values agree with CPU eager.
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

#include <optional>

#include "ops/host_scope.h"

namespace nxl::ops {
namespace {

// Which backend torch would choose for the same tensors on the CPU: the choice looks at shapes, strides, dtypes and
// whether gradients are wanted, never at values.
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  return at::native::_fused_sdp_choice_cpp(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", &fused_sdp_choice); }

}  // namespace
}  // namespace nxl::ops

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &nxl::ops::fused_sdp_choice)
}  // namespace at::native
