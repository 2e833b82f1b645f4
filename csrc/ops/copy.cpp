// SPDX-License-Identifier: Apache-2.0
// Copies between neuron tensors and the CPU, and between neuron devices.
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>
#include <optional>

#include "device/error_edge.h"
#include "device/memory.h"
#include "loader/core_queue.h"
#include "ops/host_scope.h"

namespace nxl::ops {
namespace {

bool is_neuron(const at::Tensor& tensor) { return tensor.device().type() == c10::DeviceType::PrivateUse1; }

// Equal bytes on both sides give an equal tensor: the copy needs no kernel.
bool is_plain_copy(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() && from.is_contiguous() &&
         to.is_contiguous() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg() && !from._is_zerotensor();
}

// Holds the host storage until a queued copy is done with its memory.
std::shared_ptr<void> keep(const at::Tensor& tensor) { return std::make_shared<c10::Storage>(tensor.storage()); }

bool is_pinned(const at::Tensor& cpu) { return at::detail::getPrivateUse1Hooks().isPinnedPtr(cpu.storage().data()); }

// Queues the copy behind the executions in flight and returns at once: only for pinned host memory, which the caller
// promised not to touch before it synchronizes. False when this copy does not qualify.
bool queue_copy(const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor& host = is_neuron(from) ? to : from;
  const at::Tensor& neuron = is_neuron(from) ? from : to;
  if (!is_plain_copy(from, to) || from.numel() == 0 || !is_pinned(host)) return false;
  const nxl::device::Location where = nxl::device::locate(neuron.data_ptr());
  if (where.segment == nullptr) return false;
  nxl::device::at_torch_edge([&] {
    loader::CoreQueue& queue = loader::CoreQueue::of(neuron.device().index());
    // Only the host side is kept: a device block that is freed meanwhile is reused in queue order.
    if (is_neuron(from)) {
      queue.read(host.mutable_data_ptr(), where.segment, where.offset, neuron.nbytes(), keep(host));
    } else {
      queue.write(where.segment, host.const_data_ptr(), where.offset, neuron.nbytes(), keep(host));
    }
  });
  return true;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  TORCH_CHECK(self.defined() && dst.defined(), "copy of an undefined tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.layout() == c10::kStrided && dst.layout() == c10::kStrided, "copy between neuron and a ",
      self.layout() == c10::kStrided ? dst.layout() : self.layout(), " tensor: call .to_dense() first");
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_quantized() && !dst.is_quantized(),
                              "neuron does not hold quantized tensors: call .dequantize() first");
  TORCH_CHECK_NOT_IMPLEMENTED((self.is_cpu() || is_neuron(self)) && (dst.is_cpu() || is_neuron(dst)), "copy from ",
                              self.device(), " to ", dst.device(), ": copy through the CPU");
  if (non_blocking && self.is_cpu() != dst.is_cpu() && queue_copy(self, dst)) return dst;

  std::optional<HostScope> from_scope;
  std::optional<HostScope> to_scope;
  const bool one_device = is_neuron(self) && is_neuron(dst) && self.device() == dst.device();
  if (is_neuron(self)) from_scope.emplace(self.device().index());
  if (is_neuron(dst) && !one_device) to_scope.emplace(dst.device().index());
  HostScope* target = one_device ? &*from_scope : (to_scope ? &*to_scope : nullptr);
  if (one_device && from_scope->staged()) {
    from_scope->expect(self);
    from_scope->expect(dst);
  }
  const c10::impl::ExcludeDispatchKeyGuard below_autograd(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView.add(c10::DispatchKey::AutocastCPU));
  const at::Tensor from = from_scope ? from_scope->open(self) : self;
  const at::Tensor to = target != nullptr ? target->open(dst) : dst;
  to.copy_(from);
  if (target != nullptr) target->settle(dst);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, /*non_blocking=*/false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

// Copying is how torch resolves a lazy conjugate or negation; asking it to resolve one first would never end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace nxl::ops
