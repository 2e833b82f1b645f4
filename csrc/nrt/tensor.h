// SPDX-License-Identifier: Apache-2.0
// Owner of one nrt_tensor_t. Move-only; a moved-from one is empty; after Runtime::close the deleter drops the handle.
// Freeing one that the loader's tensor sets name waits for the executions that use it (csrc/loader/bindings.h),
// so it belongs outside the locks of a caller.
#pragma once

#include <cstddef>
#include <memory>

#include "nrt/runtime.h"

namespace nxl::nrt {

class NXL_API Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor();

  // Throws kOutOfMemory with used, asked and limit when the core is full.
  static Tensor allocate_device(std::shared_ptr<Runtime> runtime, int core, size_t bytes);
  static Tensor allocate_host(std::shared_ptr<Runtime> runtime, size_t bytes);
  Tensor slice(size_t offset, size_t bytes) const;  // shares storage; must not outlive *this

  explicit operator bool() const { return handle_ != nullptr; }
  nrt_tensor_t* get() const { return handle_; }
  size_t size() const { return size_; }
  void* address() const;  // nrt_tensor_get_va: a host address on the host runtime; nullptr when there is none

 private:
  std::shared_ptr<Runtime> runtime_;
  nrt_tensor_t* handle_ = nullptr;
  size_t size_ = 0;
};

}  // namespace nxl::nrt
