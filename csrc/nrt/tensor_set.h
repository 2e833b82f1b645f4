// SPDX-License-Identifier: Apache-2.0
// Owner of one nrt_tensor_set_t. Move-only; a moved-from one is empty; after Runtime::close the deleter drops the
// handle.
#pragma once

#include <memory>

#include "nrt/runtime.h"

namespace nxl::nrt {

class NXL_API TensorSet {
 public:
  TensorSet() = default;
  TensorSet(TensorSet&& other) noexcept;
  TensorSet& operator=(TensorSet&& other) noexcept;
  ~TensorSet();

  static TensorSet allocate(std::shared_ptr<Runtime> runtime);

  explicit operator bool() const { return handle_ != nullptr; }
  nrt_tensor_set_t* get() const { return handle_; }
  // Names `tensor` in this set, instead of the one that had the name. It must outlive the set or the next add.
  // Returns the NRT status: this is the data path.
  int add(const char* name, nrt_tensor_t* tensor) noexcept;

 private:
  std::shared_ptr<Runtime> runtime_;
  nrt_tensor_set_t* handle_ = nullptr;
};

}  // namespace nxl::nrt
