// SPDX-License-Identifier: Apache-2.0
// nrt_tensor_allocate, nrt_tensor_allocate_slice and nrt_tensor_free.
#include "nrt/tensor.h"

#include <utility>

namespace nxl::nrt {
namespace {

[[noreturn, gnu::cold]] void throw_out_of_memory(const Runtime& runtime, int core, size_t bytes, int status) {
  const auto [used, limit] = runtime.memory(core);
  throw_error(ErrorKind::kOutOfMemory,
              detail::concat("neuron:", core, " is out of memory: asked for ", bytes, " bytes, ", used, " bytes of ",
                             limit, " are in use (", runtime.status_name(status), ")"),
              status);
}

}  // namespace

Tensor::Tensor(Tensor&& other) noexcept
    : runtime_(std::move(other.runtime_)),
      handle_(std::exchange(other.handle_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    Tensor old(std::move(*this));
    runtime_ = std::move(other.runtime_);
    handle_ = std::exchange(other.handle_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Tensor::~Tensor() {
  if (handle_ == nullptr || !runtime_->is_open()) return;
  notify_tensor_free(handle_);
  const OpenScope scope(runtime_.get());
  if (scope) runtime_->api().nrt_tensor_free(&handle_);
}

Tensor Tensor::allocate_device(std::shared_ptr<Runtime> runtime, int core, size_t bytes) {
  runtime->check_core(core);
  NXL_CHECK(bytes > 0, kInvalid, "a device tensor needs at least 1 byte");
  Tensor tensor;
  const int status = runtime->api().nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, core, bytes, "", &tensor.handle_);
  if (status == NRT_RESOURCE || status == NRT_FAIL_HOST_MEM_ALLOC) throw_out_of_memory(*runtime, core, bytes, status);
  NXL_NRT_CHECK(status, "nrt_tensor_allocate", detail::concat(bytes, " bytes on core ", core));
  tensor.runtime_ = std::move(runtime);
  tensor.size_ = bytes;
  return tensor;
}

Tensor Tensor::allocate_host(std::shared_ptr<Runtime> runtime, size_t bytes) {
  NXL_CHECK(bytes > 0, kInvalid, "a host tensor needs at least 1 byte");
  Tensor tensor;
  const int status = runtime->api().nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_HOST, -1, bytes, "", &tensor.handle_);
  if (status == NRT_RESOURCE || status == NRT_FAIL_HOST_MEM_ALLOC) {
    throw_error(ErrorKind::kOutOfMemory,
                detail::concat("no host memory for a tensor of ", bytes, " bytes (", runtime->status_name(status), ")"),
                status);
  }
  NXL_NRT_CHECK(status, "nrt_tensor_allocate", detail::concat(bytes, " bytes of host memory"));
  tensor.runtime_ = std::move(runtime);
  tensor.size_ = bytes;
  return tensor;
}

Tensor Tensor::slice(size_t offset, size_t bytes) const {
  NXL_CHECK(handle_ != nullptr, kInvalid, "a slice of an empty tensor");
  NXL_CHECK(offset <= size_ && bytes <= size_ - offset, kInvalid, "a slice of ", bytes, " bytes at ", offset,
            " does not fit a tensor of ", size_, " bytes");
  Tensor tensor;
  NXL_NRT_CHECK(runtime_->api().nrt_tensor_allocate_slice(handle_, offset, bytes, "", &tensor.handle_),
                "nrt_tensor_allocate_slice", detail::concat(bytes, " bytes at ", offset, " of ", size_));
  tensor.runtime_ = runtime_;
  tensor.size_ = bytes;
  return tensor;
}

void* Tensor::address() const {
  const OpenScope scope(runtime_.get());
  return handle_ != nullptr && scope ? runtime_->api().nrt_tensor_get_va(handle_) : nullptr;
}

}  // namespace nxl::nrt
