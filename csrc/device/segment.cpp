// SPDX-License-Identifier: Apache-2.0
// Segment: allocation, address, slice handles.
#include "device/segment.h"

#include <sys/mman.h>

#include <utility>

namespace nxl::device {

Segment::Segment(std::shared_ptr<nrt::Runtime> runtime, c10::DeviceIndex device, size_t bytes, bool small)
    : device_(device), small_(small) {
  host_visible_ = runtime->is_host();
  tensor_ = nrt::Tensor::allocate_device(std::move(runtime), device, bytes);
  base_ = static_cast<std::byte*>(tensor_.address());
  if (base_ == nullptr) {
    NXL_CHECK(!host_visible_, kInternal, "the host runtime gave no address for a segment of ", bytes, " bytes");
    void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NXL_CHECK(range != MAP_FAILED, kUnavailable, "cannot reserve ", bytes,
              " bytes of address space for device memory; raise the limit on virtual memory (ulimit -v)");
    base_ = static_cast<std::byte*>(range);
    reserved_ = true;
  }
}

Segment::~Segment() {
  slices_.clear();
  if (reserved_) munmap(base_, tensor_.size());
}

nrt_tensor_t* Segment::slice(size_t offset, size_t bytes) {
  if (offset == 0 && bytes == tensor_.size()) return tensor_.get();
  const std::lock_guard lock(mutex_);
  const auto [it, inserted] = slices_.try_emplace(Window{offset, bytes});
  if (inserted) {
    try {
      it->second = tensor_.slice(offset, bytes);
    } catch (...) {
      slices_.erase(it);
      throw;
    }
  }
  return it->second.get();
}

std::vector<nrt::Tensor> Segment::drop_slices(size_t offset, size_t bytes) {
  std::vector<nrt::Tensor> dropped;
  const std::lock_guard lock(mutex_);
  if (slices_.size() <= kMaxSlices) return dropped;
  for (auto it = slices_.begin(); it != slices_.end();) {
    if (it->first.offset < offset + bytes && offset < it->first.offset + it->first.bytes) {
      dropped.push_back(std::move(it->second));
      it = slices_.erase(it);
    } else {
      ++it;
    }
  }
  return dropped;
}

}  // namespace nxl::device
