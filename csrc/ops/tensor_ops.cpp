// SPDX-License-Identifier: Apache-2.0
// The operators that make and reshape neuron tensors: no computation, so no CPU fallback.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "device/memory.h"
#include "ops/host_scope.h"

namespace nxl::ops {
namespace {

using c10::Device;
using c10::DeviceType;
using std::optional;

constexpr c10::DispatchKeySet kNeuronKeys{c10::DispatchKey::PrivateUse1};

// The allocator works on the current device; switching costs, so only where the device is another one.
class OnDevice {
 public:
  explicit OnDevice(optional<Device> device) {
    const c10::DeviceIndex current = nxl::device::current_device();
    const c10::DeviceIndex wanted = device.has_value() && device->has_index() ? device->index() : current;
    if (wanted != current) guard_.reset_device(Device(DeviceType::PrivateUse1, nxl::device::resolve_device(wanted)));
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

c10::ScalarType checked_dtype(optional<c10::ScalarType> dtype, optional<c10::Layout> layout, optional<bool> pinned) {
  const c10::ScalarType type = c10::dtype_or_default(dtype);
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided,
                              "neuron holds dense strided tensors only; layout ", *layout,
                              " is not supported: build it on the CPU");
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isQIntType(type), "neuron does not hold quantized tensors (dtype ", type,
                              "): build it on the CPU");
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "Only dense CPU tensors can be pinned; this one is on neuron");
  return type;
}

// torch.use_deterministic_algorithms(True) wants NaN, or the largest integer, in memory that nobody has written yet.
at::Tensor filled_if_asked(at::Tensor tensor) {
  const at::Context& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor empty(c10::IntArrayRef size, optional<c10::ScalarType> dtype, optional<c10::Layout> layout,
                 optional<Device> device, optional<bool> pinned, optional<c10::MemoryFormat> format) {
  const c10::ScalarType type = checked_dtype(dtype, layout, pinned);
  const OnDevice guard(device);
  return filled_if_asked(
      at::detail::empty_generic(size, c10::GetAllocator(DeviceType::PrivateUse1), kNeuronKeys, type, format));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, optional<c10::ScalarType> dtype,
                         optional<c10::Layout> layout, optional<Device> device, optional<bool> pinned) {
  const c10::ScalarType type = checked_dtype(dtype, layout, pinned);
  const OnDevice guard(device);
  return filled_if_asked(
      at::detail::empty_strided_generic(size, stride, c10::GetAllocator(DeviceType::PrivateUse1), kNeuronKeys, type));
}

// All zeros without memory: what forward-mode autograd uses for absent tangents.
at::Tensor efficient_zero_tensor(c10::IntArrayRef size, optional<c10::ScalarType> dtype, optional<c10::Layout> layout,
                                 optional<Device> device, optional<bool> pinned) {
  const c10::ScalarType type = checked_dtype(dtype, layout, pinned);
  const c10::DeviceIndex index =
      nxl::device::resolve_device(device.has_value() ? device->index() : static_cast<c10::DeviceIndex>(-1));
  at::native::ZeroTensorAllocator allocator(Device(DeviceType::PrivateUse1, index));
  return at::detail::empty_generic(size, &allocator, kNeuronKeys.add(c10::DispatchKey::ZeroTensor), type, std::nullopt);
}

// Gives `self` the geometry, and its storage room for it: contiguous strides when none are given. Room first: a tensor
// whose storage could not grow must stay as it was, not reach past the end of it.
void set_geometry(const at::Tensor& self, c10::IntArrayRef size, optional<c10::IntArrayRef> stride, int64_t offset) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (impl->sizes() != size || (stride && impl->strides() != *stride)) {
    const auto first = static_cast<size_t>(offset);
    const size_t bytes = stride ? at::detail::computeStorageNbytes(size, *stride, self.element_size(), first)
                                : at::detail::computeStorageNbytesContiguous(size, self.element_size(), first);
    if (c10::multiply_integers(size) != 0) grow_storage(impl->unsafe_storage(), bytes);
    if (stride) {
      impl->set_sizes_and_strides(size, *stride);
    } else {
      impl->generic_set_sizes_contiguous(size);
    }
  }
  impl->set_storage_offset(offset);
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, optional<c10::MemoryFormat> format) {
  at::detail::check_size_nonnegative(size);
  set_geometry(self, size, std::nullopt, self.storage_offset());
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef size,
                               c10::IntArrayRef stride) {
  const c10::Storage before = self.storage();
  at::native::checkSetStorage<int64_t>(self, source, offset, size, stride);
  try {
    set_geometry(self, size, stride.data() != nullptr ? optional<c10::IntArrayRef>(stride) : std::nullopt, offset);
  } catch (...) {
    self.unsafeGetTensorImpl()->set_storage_keep_dtype(before);
    throw;
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source) {
  const int64_t elements = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage_offset(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  const OnDevice guard(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(DeviceType::PrivateUse1), true);
  return set_storage_offset(self, std::move(storage), 0, {0}, {});
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  HostScope scope(self.device().index());
  return at::_local_scalar_dense(scope.open(self));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  c10::getDeviceAllocator(DeviceType::PrivateUse1)->recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize_);
  m.impl("set_", &set_empty);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
}

}  // namespace
}  // namespace nxl::ops
