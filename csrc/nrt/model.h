// SPDX-License-Identifier: Apache-2.0
// Owner of one nrt_model_t. Move-only; a moved-from one is empty; after Runtime::close the deleter drops the handle.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nrt/runtime.h"

namespace nxl::nrt {

// One row of nrt_get_model_tensor_info, copied.
struct ModelTensor {
  std::string name;
  bool is_output = false;
  size_t bytes = 0;
  nrt_dtype_t dtype = NRT_DTYPE_UNKNOWN;
  std::vector<int64_t> shape;
};

// One of the ranks that execute a NEFF with collectives together.
struct Place {
  uint32_t rank = 0;
  uint32_t count = 1;
};

class NXL_API Model {
 public:
  Model() = default;
  Model(Model&& other) noexcept;
  Model& operator=(Model&& other) noexcept;
  ~Model();

  // nrt_load, or nrt_load_collectives for a rank of several. The bytes are not needed afterwards. Throws kOutOfMemory
  // when the core is full, kUnsupported when the runtime has no collectives. `name` is for errors.
  static Model load(std::shared_ptr<Runtime> runtime, std::span<const std::byte> neff, int core,
                    const std::string& name, Place place);

  explicit operator bool() const { return handle_ != nullptr; }
  nrt_model_t* get() const { return handle_; }
  std::vector<ModelTensor> tensors() const;
  void unload() noexcept;  // no execution may be in flight; idempotent

 private:
  std::shared_ptr<Runtime> runtime_;
  nrt_model_t* handle_ = nullptr;
};

}  // namespace nxl::nrt
