// SPDX-License-Identifier: Apache-2.0
// torch.autocast("neuron"): PyTorch's own lists of operators that run in low precision, in float32, or promoted.
#include <ATen/autocast_mode.h>

namespace nxl::ops {
namespace {

// The names that the macro with spelled-out signatures uses.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;
using at::TensorList;
using std::optional;

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define NXL_LOW_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(NXL_LOW_PRECISION)
#undef NXL_LOW_PRECISION
#define NXL_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(NXL_FLOAT32)
#undef NXL_FLOAT32
#define NXL_FLOAT32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(NXL_FLOAT32_DTYPE)
#undef NXL_FLOAT32_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define NXL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(NXL_PROMOTE)
#undef NXL_PROMOTE
}

}  // namespace
}  // namespace nxl::ops
