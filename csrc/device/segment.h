// SPDX-License-Identifier: Apache-2.0
// One NRT device tensor that blocks are cut from, and the slice handles that were made on it.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "nrt/tensor.h"

namespace nxl::device {

class Segment {
 public:
  // Throws nxl::Error(kOutOfMemory) when the core is full.
  Segment(std::shared_ptr<nrt::Runtime> runtime, c10::DeviceIndex device, size_t bytes, bool small);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  c10::DeviceIndex device() const { return device_; }
  bool small() const { return small_; }
  size_t size() const { return tensor_.size(); }
  nrt_tensor_t* handle() const { return tensor_.get(); }

  // What data_ptr() shows. Real memory on the host runtime. On a chip it is the mapped HBM address when
  // NEURON_RT_MAP_HBM is set, else an address range that is reserved but cannot be read or written, so that pointer
  // arithmetic and identity hold and a stray access faults instead of corrupting.
  std::byte* base() const { return base_; }
  bool host_visible() const { return host_visible_; }

  // The handle of exactly [offset, offset + bytes), made by the first call. Lives until drop_slices() or the segment's
  // end. Throws nxl::Error when NRT refuses.
  nrt_tensor_t* slice(size_t offset, size_t bytes);

  // When more than kMaxSlices handles have gathered, moves those that lie in [offset, offset + bytes) out: the caller
  // keeps them until the work queued so far is done. Otherwise they stay for the next tensor that gets this window.
  static constexpr size_t kMaxSlices = 1024;
  std::vector<nrt::Tensor> drop_slices(size_t offset, size_t bytes);

 private:
  struct Window {
    size_t offset;
    size_t bytes;
    bool operator==(const Window&) const = default;
  };
  struct WindowHash {
    size_t operator()(const Window& window) const {
      return std::hash<size_t>()(window.offset * 0x9E3779B97F4A7C15ull ^ window.bytes);
    }
  };

  c10::DeviceIndex device_;
  bool small_;
  bool host_visible_ = false;
  bool reserved_ = false;  // base_ is a PROT_NONE range of ours
  std::byte* base_ = nullptr;
  nrt::Tensor tensor_;
  std::mutex mutex_;                                            // guards slices_
  std::unordered_map<Window, nrt::Tensor, WindowHash> slices_;  // destroyed before tensor_
};

}  // namespace nxl::device
