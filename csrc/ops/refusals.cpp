// SPDX-License-Identifier: Apache-2.0
// Tensor kinds that the device does not hold: every operator on them says so in one sentence.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace nxl::ops {
namespace {

void refuse(const c10::OperatorHandle& op, const char* kind, const char* remedy) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(),
                              ": neuron holds dense strided tensors only, and one of these is ", kind, "; ", remedy);
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "sparse", "call .to_dense() or stay on the CPU");
}

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "quantized", "call .dequantize() or stay on the CPU");
}

void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "nested", "pad it with torch.nested.to_padded_tensor or stay on the CPU");
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

}  // namespace
}  // namespace nxl::ops
