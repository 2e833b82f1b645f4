// SPDX-License-Identifier: Apache-2.0
// nrt_allocate_tensor_set, nrt_add_tensor_to_tensor_set and nrt_destroy_tensor_set.
#include "nrt/tensor_set.h"

#include <utility>

namespace nxl::nrt {

TensorSet::TensorSet(TensorSet&& other) noexcept
    : runtime_(std::move(other.runtime_)), handle_(std::exchange(other.handle_, nullptr)) {}

TensorSet& TensorSet::operator=(TensorSet&& other) noexcept {
  if (this != &other) {
    TensorSet old(std::move(*this));
    runtime_ = std::move(other.runtime_);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

TensorSet::~TensorSet() {
  if (handle_ == nullptr) return;
  const OpenScope scope(runtime_.get());
  if (scope) runtime_->api().nrt_destroy_tensor_set(&handle_);
}

TensorSet TensorSet::allocate(std::shared_ptr<Runtime> runtime) {
  TensorSet set;
  NXL_NRT_CHECK(runtime->api().nrt_allocate_tensor_set(&set.handle_), "nrt_allocate_tensor_set", "a new tensor set");
  set.runtime_ = std::move(runtime);
  return set;
}

int TensorSet::add(const char* name, nrt_tensor_t* tensor) noexcept {
  return runtime_->api().nrt_add_tensor_to_tensor_set(handle_, name, tensor);
}

}  // namespace nxl::nrt
