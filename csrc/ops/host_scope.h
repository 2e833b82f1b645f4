// SPDX-License-Identifier: Apache-2.0
// The seam between device memory and CPU kernels: CPU tensors that stand for neuron tensors during one call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <unordered_map>

namespace nxl::ops {

// Opens neuron tensors of ONE device as CPU tensors. Where the host can address device memory (the host runtime) an
// opened tensor aliases it; otherwise the part of the storage that the call touches is read into a staging buffer and
// written back by settle(). Tensors that share storage on the device share it here too, and the same tensor opens to
// the same tensor, so overlap checks and `out is self` behave as they do on the CPU.
//
// Order of use: expect() every tensor (only needed when staged() is true), open() them, run the kernel, settle() the
// tensors it may have written, adopt() its results. Not thread safe; lives on the stack of one call.
class HostScope {
 public:
  // Waits until nothing is in flight on the device and throws the first execution error since the last wait.
  explicit HostScope(c10::DeviceIndex device);
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

  c10::DeviceIndex device() const { return device_; }
  bool staged() const { return staged_; }

  // Widens the window of the tensor's storage that open() will stage.
  void expect(const at::Tensor& neuron);
  at::Tensor open(const at::Tensor& neuron);

  // After a kernel that may have written `neuron`: takes over a resize or a replaced storage, writes staged bytes back.
  void settle(const at::Tensor& neuron);
  // A result of the kernel as a neuron tensor: the input that it is, a view of the input's storage that it shares, or
  // one copy in device memory with the same sizes, strides and memory format. Throws for layouts and quantized types
  // that the device does not hold.
  at::Tensor adopt(const at::Tensor& result);

 private:
  struct OpenStorage {
    c10::StorageImpl* neuron;  // kept alive by the tensors that were opened
    c10::intrusive_ptr<c10::StorageImpl> host;
    void* opened_data;    // what host's data pointer was when it was opened: another value means a resize
    size_t window_begin;  // staged: first byte of the device storage that `host` holds
    size_t window_end;
  };
  struct OpenTensor {
    at::Tensor neuron;
    at::Tensor host;
    uint32_t storage;       // index into storages_
    int64_t opened_offset;  // host's storage offset when it was opened, in elements
  };

  OpenStorage& storage_of(const at::Tensor& neuron, uint32_t* index);
  const OpenTensor* find(const c10::TensorImpl* neuron) const;
  void load(OpenStorage& storage);
  void store(OpenStorage& storage);
  at::Tensor copy_to_device(const at::Tensor& result);

  c10::DeviceIndex device_;
  bool staged_;
  c10::SmallVector<OpenStorage, 4> storages_;
  c10::SmallVector<OpenTensor, 4> tensors_;
  // Filled past kLinear entries only: foreach operators take hundreds of tensors.
  static constexpr size_t kLinear = 16;
  std::unordered_map<const void*, uint32_t> storage_index_;
  std::unordered_map<const void*, uint32_t> tensor_index_;
};

// Byte copies between this process and device memory on the calling thread, after the caller has waited.
void read_device(void* target, const void* device_address, size_t bytes);
void write_device(void* device_address, const void* source, size_t bytes);

// Tests only: behave as on a chip, whose memory the host cannot address, on the host runtime too.
__attribute__((visibility("default"))) void set_staging_forced(bool forced);
bool device_is_addressable(c10::DeviceIndex device);

// Grows a neuron storage to at least `bytes`, keeping its contents.
void grow_storage(const c10::Storage& storage, size_t bytes);

}  // namespace nxl::ops
