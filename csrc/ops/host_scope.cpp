// SPDX-License-Identifier: Apache-2.0
// HostScope: aliases on the host runtime, staged copies on a chip.
#include "ops/host_scope.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "device/allocator.h"
#include "device/error_edge.h"
#include "device/memory.h"
#include "nrt/runtime.h"

namespace nxl::ops {
namespace {

std::atomic<bool> staging_forced{false};

// Windows start on a multiple of the largest element, so that an offset in any element type stays a whole number.
constexpr size_t kWindowAlignment = 16;

void release_storage(void* context) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context)); }

// A CPU storage over memory that `owner` holds; it keeps the owner alive, because a kernel may keep its argument.
c10::intrusive_ptr<c10::StorageImpl> alias_storage(c10::StorageImpl* owner, void* data) {
  c10::raw::intrusive_ptr::incref(owner);
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), owner->nbytes(),
      c10::DataPtr(data, owner, &release_storage, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
      /*resizable=*/true);
}

void copy_bits(const at::Tensor& from, c10::TensorImpl* to) {
  const c10::TensorImpl* impl = from.unsafeGetTensorImpl();
  if (impl->is_conj()) to->_set_conj(true);
  if (impl->is_neg()) to->_set_neg(true);
  if (impl->is_wrapped_number()) to->set_wrapped_number(true);
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& geometry,
                       int64_t storage_offset) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), keys, geometry.dtype());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(geometry.sizes(), geometry.strides(), storage_offset);
  copy_bits(geometry, impl);
  return tensor;
}

constexpr c10::DispatchKeySet kCpuKeys{c10::DispatchKey::CPU};
constexpr c10::DispatchKeySet kNeuronKeys{c10::DispatchKey::PrivateUse1};

// First byte and one past the last byte of the storage that the elements of `tensor` lie in.
std::pair<size_t, size_t> byte_window(const at::Tensor& tensor) {
  const size_t begin = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  if (tensor.numel() == 0) return {begin, begin};
  return {begin, at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                                  tensor.storage_offset())};
}

void check_holdable(const at::Tensor& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(!result.is_quantized(), "neuron does not hold quantized tensors (this result is ",
                              result.scalar_type(), "); call .cpu() first and quantize on the CPU");
  TORCH_CHECK_NOT_IMPLEMENTED(!result.is_nested(),
                              "neuron holds dense strided tensors only (this result is nested); call .cpu() first and "
                              "work on the CPU");
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided,
                              "neuron holds dense strided tensors only (this result has the layout ", result.layout(),
                              "); call .cpu() first and work on the CPU");
}

at::Tensor allocate_bytes(size_t bytes, c10::ScalarType dtype, c10::DeviceIndex device) {
  nxl::device::NeuronAllocator& allocator = nxl::device::allocator();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocator.allocate_on(device, bytes), &allocator,
                                                       /*resizable=*/true);
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kNeuronKeys, c10::scalarTypeToTypeMeta(dtype));
}

}  // namespace

void set_staging_forced(bool forced) { staging_forced = forced; }

bool device_is_addressable(c10::DeviceIndex device) {
  return !staging_forced.load(std::memory_order_relaxed) && nxl::device::host_visible(device);
}

void read_device(void* target, const void* device_address, size_t bytes) {
  if (bytes == 0) return;
  if (!staging_forced.load(std::memory_order_relaxed)) {
    if (const void* host = nxl::device::host_address(device_address)) {
      std::memcpy(target, host, bytes);
      return;
    }
  }
  const nxl::device::Location where = nxl::device::locate(device_address);
  TORCH_INTERNAL_ASSERT(where.segment != nullptr && bytes <= where.bytes_after,
                        "device address outside the allocator's segments");
  nxl::device::at_torch_edge([&] {
    NXL_NRT_CHECK(nrt::Runtime::get()->api().nrt_tensor_read(where.segment, target, where.offset, bytes),
                  "nrt_tensor_read", nxl::detail::concat(bytes, " bytes"));
  });
}

void write_device(void* device_address, const void* source, size_t bytes) {
  if (bytes == 0) return;
  if (!staging_forced.load(std::memory_order_relaxed)) {
    if (void* host = nxl::device::host_address(device_address)) {
      std::memcpy(host, source, bytes);
      return;
    }
  }
  const nxl::device::Location where = nxl::device::locate(device_address);
  TORCH_INTERNAL_ASSERT(where.segment != nullptr && bytes <= where.bytes_after,
                        "device address outside the allocator's segments");
  nxl::device::at_torch_edge([&] {
    NXL_NRT_CHECK(nrt::Runtime::get()->api().nrt_tensor_write(where.segment, source, where.offset, bytes),
                  "nrt_tensor_write", nxl::detail::concat(bytes, " bytes"));
  });
}

void grow_storage(const c10::Storage& storage, size_t bytes) {
  if (bytes <= storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
}

HostScope::HostScope(c10::DeviceIndex device) : device_(device), staged_(!device_is_addressable(device)) {
  nxl::device::wait_for_host_access(device);
}

HostScope::OpenStorage& HostScope::storage_of(const at::Tensor& neuron, uint32_t* index) {
  c10::StorageImpl* key = neuron.storage().unsafeGetStorageImpl();
  if (storages_.size() <= kLinear) {
    for (uint32_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].neuron == key) {
        *index = i;
        return storages_[i];
      }
    }
  } else if (const auto found = storage_index_.find(key); found != storage_index_.end()) {
    *index = found->second;
    return storages_[found->second];
  }
  *index = static_cast<uint32_t>(storages_.size());
  storages_.push_back({key, nullptr, nullptr, SIZE_MAX, 0});
  if (storages_.size() == kLinear + 1) {
    for (uint32_t i = 0; i < storages_.size(); ++i) storage_index_[storages_[i].neuron] = i;
  } else if (storages_.size() > kLinear) {
    storage_index_[key] = *index;
  }
  return storages_.back();
}

const HostScope::OpenTensor* HostScope::find(const c10::TensorImpl* neuron) const {
  if (tensors_.size() <= kLinear) {
    for (const OpenTensor& entry : tensors_) {
      if (entry.neuron.unsafeGetTensorImpl() == neuron) return &entry;
    }
    return nullptr;
  }
  const auto found = tensor_index_.find(neuron);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

void HostScope::expect(const at::Tensor& neuron) {
  if (neuron.numel() == 0) return;  // may start anywhere, even past the end
  uint32_t index;
  OpenStorage& storage = storage_of(neuron, &index);
  const auto [begin, end] = byte_window(neuron);
  storage.window_begin = std::min(storage.window_begin, begin / kWindowAlignment * kWindowAlignment);
  storage.window_end = std::max(storage.window_end, end);
}

void HostScope::load(OpenStorage& storage) {
  if (storage.window_end == 0) storage.window_begin = 0;
  const size_t bytes = storage.window_end - storage.window_begin;
  c10::DataPtr buffer = c10::GetCPUAllocator()->allocate(bytes);
  if (bytes != 0) {
    read_device(buffer.get(), static_cast<const std::byte*>(storage.neuron->data()) + storage.window_begin, bytes);
  }
  storage.host = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(buffer),
                                                       c10::GetCPUAllocator(), /*resizable=*/true);
}

void HostScope::store(OpenStorage& storage) {
  const size_t bytes = storage.window_end - storage.window_begin;
  if (bytes == 0) return;
  write_device(static_cast<std::byte*>(storage.neuron->mutable_data()) + storage.window_begin, storage.host->data(),
               bytes);
}

at::Tensor HostScope::open(const at::Tensor& neuron) {
  c10::TensorImpl* impl = neuron.unsafeGetTensorImpl();
  if (const OpenTensor* entry = find(impl)) return entry->host;
  if (neuron._is_zerotensor()) return at::_efficientzerotensor(neuron.sizes(), neuron.options().device(c10::kCPU));
  if (staged_) expect(neuron);
  uint32_t index;
  OpenStorage& storage = storage_of(neuron, &index);
  if (!storage.host) {
    if (staged_) {
      load(storage);
    } else {
      storage.window_begin = 0;
      storage.host = alias_storage(storage.neuron, storage.neuron->mutable_data());
    }
    storage.opened_data = storage.host->mutable_data();
  }
  int64_t offset = neuron.storage_offset();
  if (staged_ && neuron.numel() != 0) {
    TORCH_INTERNAL_ASSERT(byte_window(neuron).second - storage.window_begin <= storage.host->nbytes(),
                          "a tensor was opened outside the window that was expected");
    offset -= static_cast<int64_t>(storage.window_begin / neuron.element_size());
  }
  at::Tensor host = tensor_over(c10::Storage(storage.host), kCpuKeys, neuron, offset);
  tensors_.push_back({neuron, host, index, offset});
  if (tensors_.size() == kLinear + 1) {
    for (uint32_t i = 0; i < tensors_.size(); ++i) tensor_index_[tensors_[i].neuron.unsafeGetTensorImpl()] = i;
  } else if (tensors_.size() > kLinear) {
    tensor_index_[impl] = static_cast<uint32_t>(tensors_.size() - 1);
  }
  return host;
}

void HostScope::settle(const at::Tensor& neuron) {
  const OpenTensor* entry = find(neuron.unsafeGetTensorImpl());
  if (entry == nullptr) return;
  OpenStorage& storage = storages_[entry->storage];
  c10::TensorImpl* impl = neuron.unsafeGetTensorImpl();
  const at::Tensor& host = entry->host;
  if (host.storage().unsafeGetStorageImpl() != storage.host.get()) {
    // The kernel gave its output another storage.
    const at::Tensor replaced = adopt(host);
    impl->set_storage_keep_dtype(replaced.storage());
    impl->set_sizes_and_strides(replaced.sizes(), replaced.strides(), replaced.storage_offset());
    return;
  }
  if (storage.host->data() != storage.opened_data) {
    const size_t needed = storage.window_begin + storage.host->nbytes();
    grow_storage(neuron.storage(), needed);
    nxl::device::wait_for_host_access(device_);
    write_device(static_cast<std::byte*>(storage.neuron->mutable_data()) + storage.window_begin, storage.host->data(),
                 storage.host->nbytes());
    storage.window_end = needed;
    storage.opened_data = storage.host->mutable_data();
  } else if (staged_) {
    store(storage);
  }
  const int64_t offset = neuron.storage_offset() + host.storage_offset() - entry->opened_offset;
  if (host.sizes() != neuron.sizes() || host.strides() != neuron.strides() || offset != neuron.storage_offset()) {
    impl->set_sizes_and_strides(host.sizes(), host.strides(), offset);
  }
}

at::Tensor HostScope::copy_to_device(const at::Tensor& result) {
  if (result._is_zerotensor()) {
    return at::_efficientzerotensor(result.sizes(),
                                    result.options().device(c10::Device(c10::DeviceType::PrivateUse1, device_)));
  }
  const auto [begin, end] = byte_window(result);
  at::Tensor neuron = allocate_bytes(end - begin, result.scalar_type(), device_);
  c10::TensorImpl* impl = neuron.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(result.sizes(), result.strides(), 0);
  copy_bits(result, impl);
  if (end != begin) {
    // Memory that was just handed out may still be read by an execution queued before it was freed.
    nxl::device::wait_for_host_access(device_);
    write_device(neuron.storage().mutable_data(), static_cast<const std::byte*>(result.storage().data()) + begin,
                 end - begin);
  }
  return neuron;
}

at::Tensor HostScope::adopt(const at::Tensor& result) {
  for (const OpenTensor& entry : tensors_) {
    if (entry.host.unsafeGetTensorImpl() == result.unsafeGetTensorImpl() &&
        result.storage().unsafeGetStorageImpl() == storages_[entry.storage].host.get()) {
      return entry.neuron;
    }
  }
  check_holdable(result);
  for (const OpenStorage& storage : storages_) {
    if (storage.host && storage.host.get() == result.storage().unsafeGetStorageImpl()) {
      return tensor_over(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.neuron)), kNeuronKeys,
                         result,
                         result.storage_offset() + static_cast<int64_t>(storage.window_begin / result.element_size()));
    }
  }
  return copy_to_device(result);
}

}  // namespace nxl::ops
