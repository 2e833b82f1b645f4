// SPDX-License-Identifier: Apache-2.0
// From tensors and addresses to NRT handles.
#include "device/memory.h"

#include <c10/core/StorageImpl.h>

#include "device/address_map.h"
#include "device/allocator.h"
#include "device/context.h"
#include "device/error_edge.h"

namespace nxl::device {

nrt_tensor_t* tensor_handle(const at::TensorBase& tensor) {
  TORCH_CHECK_VALUE(tensor.device().type() == kDeviceType, "expected a tensor on neuron, got one on ", tensor.device());
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "expected a contiguous tensor, got sizes ", tensor.sizes(),
                    " with strides ", tensor.strides());
  const size_t bytes = tensor.nbytes();
  if (bytes == 0) return nullptr;
  const size_t offset = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  const c10::DataPtr& pointer = tensor.storage().data_ptr();
  return at_torch_edge([&]() -> nrt_tensor_t* {
    if (Block* block = NeuronAllocator::block_of(pointer)) {
      NXL_CHECK(offset + bytes <= block->size, kInvalid, "the tensor reaches to byte ", offset + bytes,
                " of a storage of ", block->requested, " bytes");
      if (offset != 0 || bytes != block->requested) return block->segment->slice(block->offset + offset, bytes);
      nrt_tensor_t* whole = block->whole.load(std::memory_order_acquire);
      if (__builtin_expect(whole == nullptr, 0)) {
        whole = block->segment->slice(block->offset, bytes);
        block->whole.store(whole, std::memory_order_release);
      }
      return whole;
    }
    const std::byte* address = static_cast<const std::byte*>(pointer.get()) + offset;
    Segment* segment = AddressMap::get().find(address);
    NXL_CHECK(segment != nullptr, kInvalid, "the tensor's storage at ", pointer.get(),
              " was not allocated on a neuron device by this package");
    const size_t start = static_cast<size_t>(address - segment->base());
    NXL_CHECK(bytes <= segment->size() - start, kInvalid, "the tensor reaches past the end of its device memory");
    return segment->slice(start, bytes);
  });
}

Location locate(const void* data_ptr) noexcept {
  const Segment* segment = AddressMap::get().find(data_ptr);
  if (segment == nullptr) return {};
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(data_ptr) - segment->base());
  return {segment->handle(), offset, segment->size() - offset, segment->device()};
}

void* host_address(const void* data_ptr) noexcept {
  const Segment* segment = AddressMap::get().find(data_ptr);
  return segment != nullptr && segment->host_visible() ? const_cast<void*>(data_ptr) : nullptr;
}

void* host_address(const at::TensorBase& tensor) noexcept {
  if (!tensor.has_storage() || tensor.device().type() != kDeviceType) return nullptr;
  const c10::DataPtr& pointer = tensor.storage().data_ptr();
  auto* first = static_cast<std::byte*>(pointer.get());
  if (first == nullptr) return nullptr;
  const Block* block = NeuronAllocator::block_of(pointer);
  const bool visible = block != nullptr ? block->segment->host_visible() : host_address(first) != nullptr;
  return visible ? first + static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize() : nullptr;
}

}  // namespace nxl::device
