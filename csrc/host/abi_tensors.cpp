// SPDX-License-Identifier: Apache-2.0
// Exported functions: tensors and tensor sets.
#include <cstring>

#include "host/edge.h"
#include "host/log.h"

using namespace nxl::host;

namespace {

constexpr const char* kTensor = "tensor";
constexpr const char* kTensorSet = "tensor set";
constexpr uint64_t kForeverMicroseconds = 1ull << 50;  // more than 30 years: a timeout from here on is none

std::shared_ptr<Tensor> tensor_of(const nrt_tensor_t* handle) {
  return Runtime::instance().tensors.get(handle, kTensor);
}

std::string name_of(const char* name) { return name ? name : ""; }

template <typename T>
void require(const T* pointer, const char* what) {
  if (pointer == nullptr) refuse(NRT_INVALID, what, " is null");
}

void require_buffer(const void* buffer, size_t size) {
  if (size != 0) require(buffer, "the buffer");
}

void store(nrt_tensor_t** out, std::shared_ptr<Tensor> tensor) {
  *out = Runtime::instance().tensors.insert(std::move(tensor));
}

// Every range of a batch is checked before the first byte moves.
template <typename Move>
void run_batch(const nrt_tensor_batch_t* batches, uint64_t count, Move&& move) {
  if (count != 0) require(batches, "the batch");
  for (const bool checking : {true, false}) {
    for (uint64_t i = 0; i < count; ++i) {
      const auto tensor = tensor_of(batches[i].tensor);
      if (batches[i].num_ops != 0) require(batches[i].ops, "the batch's list of operations");
      for (uint32_t j = 0; j < batches[i].num_ops; ++j) {
        const nrt_tensor_batch_op_t& op = batches[i].ops[j];
        const View view = tensor->range(op.offset, op.size);
        require_buffer(op.buffer, op.size);
        if (!checking && op.size != 0) move(view, op.buffer);
      }
    }
  }
}

}  // namespace

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int vnc, size_t size, const char* name,
                                               nrt_tensor_t** tensor) {
  return at_edge(Call::nrt_tensor_allocate, [&] {
    require(tensor, "the result");
    Runtime& runtime = Runtime::instance();
    switch (raw_value(placement)) {
      case NRT_TENSOR_PLACEMENT_DEVICE: {
        const auto& core = runtime.core(vnc);
        store(tensor, Tensor::device(core->memory(), core->index(), size, name_of(name)));
        return NRT_SUCCESS;
      }
      case NRT_TENSOR_PLACEMENT_HOST:
        if (vnc != -1) runtime.core(vnc);
        store(tensor, Tensor::host(size, name_of(name)));
        return NRT_SUCCESS;
    }
    refuse(NRT_INVALID, "tensor '", name_of(name), "': placement ", raw_value(placement),
           " is neither DEVICE (0) nor HOST (1)");
  });
}

NXL_HOST_EXPORT void nrt_tensor_free(nrt_tensor_t** tensor) {
  if (tensor == nullptr || *tensor == nullptr) return;
  nrt_tensor_t* const handle = *tensor;
  *tensor = nullptr;
  if (Runtime::lost_in_fork()) return;
  // Allowed after close: an owner that outlives the runtime gives its memory back.
  if (const auto freed = Runtime::instance().tensors.remove(handle)) {
    freed->mark_freed();
  } else {
    log_parts(LogLevel::kWarning, "nrt_tensor_free: ", handle, " is not a live tensor");
  }
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buffer, size_t offset, size_t size) {
  return at_edge(Call::nrt_tensor_read, [&] {
    const View view = tensor_of(tensor)->range(offset, size);
    require_buffer(buffer, size);
    if (size != 0) std::memcpy(buffer, view.address, size);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buffer, size_t offset, size_t size) {
  return at_edge(Call::nrt_tensor_write, [&] {
    const View view = tensor_of(tensor)->range(offset, size);
    require_buffer(buffer, size);
    if (size != 0) std::memcpy(view.address, buffer, size);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool) {
  return at_edge(Call::nrt_tensor_read_batch, [&] {
    run_batch(batches, count, [](const View& view, void* buffer) { std::memcpy(buffer, view.address, view.bytes); });
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool) {
  return at_edge(Call::nrt_tensor_write_batch, [&] {
    run_batch(batches, count, [](const View& view, void* buffer) { std::memcpy(view.address, buffer, view.bytes); });
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* src, size_t src_offset, nrt_tensor_t* dst,
                                           size_t dst_offset, size_t size) {
  return at_edge(Call::nrt_tensor_copy, [&] {
    const View source = tensor_of(src)->range(src_offset, size);
    const View target = tensor_of(dst)->range(dst_offset, size);
    check_copy(source, target);
    copy_bytes(source, target);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT size_t nrt_tensor_get_size(const nrt_tensor_t* tensor) {
  if (Runtime::state() != NRT_SUCCESS) return 0;
  const auto found = Runtime::instance().tensors.find(tensor);
  return found ? found->bytes() : 0;
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value, size_t size) {
  return at_edge(Call::nrt_tensor_memset, [&] {
    const View view = tensor_of(tensor)->range(offset, size);
    if (size != 0) std::memset(view.address, value, size);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_allocate_empty(const char* name, nrt_tensor_t** tensor) {
  return at_edge(Call::nrt_tensor_allocate_empty, [&] {
    require(tensor, "the result");
    store(tensor, Tensor::empty(name_of(name)));
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t* tensor, void* buffer, size_t size) {
  return at_edge(Call::nrt_tensor_attach_buffer, [&] {
    tensor_of(tensor)->attach(buffer, size);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* src, size_t offset, size_t size,
                                                     const char* name, nrt_tensor_t** slice) {
  return at_edge(Call::nrt_tensor_allocate_slice, [&] {
    require(slice, "the result");
    store(slice, tensor_of(src)->slice(offset, size, name_of(name)));
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT void* nrt_tensor_get_va(const nrt_tensor_t* tensor) {
  if (Runtime::state() != NRT_SUCCESS) return nullptr;
  const auto found = Runtime::instance().tensors.find(tensor);
  if (!found) return nullptr;
  try {
    return found->whole().address;
  } catch (...) {  // no storage: null is this function's report
    return nullptr;
  }
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_get_device_allocation_info(const nrt_tensor_t* tensor,
                                                                 nrt_tensor_device_allocation_info_t* info) {
  return at_edge(Call::nrt_tensor_get_device_allocation_info, [&] {
    require(info, "the result");
    const auto found = tensor_of(tensor);
    const View view = found->whole();
    if (view.storage->core < 0) refuse(NRT_INVALID, "tensor '", found->name(), "' is not in device memory");
    *info = {reinterpret_cast<uint64_t>(view.address), view.bytes, view.storage->core};
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_get_dmabuf_fd(uint64_t va, uint64_t size, int* fd) {
  return at_edge(Call::nrt_get_dmabuf_fd, [&] {
    require(fd, "the result");
    for (const auto& core : Runtime::instance().cores()) {
      const int exported = core->memory()->export_range(va, size);
      if (exported < 0) continue;
      *fd = exported;
      return NRT_SUCCESS;
    }
    refuse(NRT_INVALID, size, " bytes at ", reinterpret_cast<void*>(va), " are not inside one device tensor");
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_check_output_completion(const nrt_tensor_t* tensor, int64_t timeout_us,
                                                              uint64_t count) {
  return at_edge(Call::nrt_tensor_check_output_completion, [&] {
    const auto found = tensor_of(tensor);
    std::optional<std::chrono::microseconds> timeout;
    if (timeout_us >= 0 && static_cast<uint64_t>(timeout_us) < kForeverMicroseconds) {
      timeout = std::chrono::microseconds(timeout_us);
    }
    if (found->wait_for_completions(count, timeout, [] { return Runtime::state() != NRT_SUCCESS; })) {
      return NRT_SUCCESS;
    }
    const NRT_STATUS state = Runtime::state();
    return state == NRT_SUCCESS ? NRT_TIMEOUT : state;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_tensor_reset_output_completion(nrt_tensor_t* tensor) {
  return at_edge(Call::nrt_tensor_reset_output_completion, [&] {
    tensor_of(tensor)->reset_completions();
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** set) {
  return at_edge(Call::nrt_allocate_tensor_set, [&] {
    require(set, "the result");
    *set = Runtime::instance().tensor_sets.insert(std::make_shared<TensorSet>());
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT void nrt_destroy_tensor_set(nrt_tensor_set_t** set) {
  if (set == nullptr || *set == nullptr) return;
  nrt_tensor_set_t* const handle = *set;
  *set = nullptr;
  if (Runtime::lost_in_fork()) return;
  if (!Runtime::instance().tensor_sets.remove(handle)) {
    log_parts(LogLevel::kWarning, "nrt_destroy_tensor_set: ", handle, " is not a live tensor set");
  }
}

NXL_HOST_EXPORT NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* set, const char* name, nrt_tensor_t* tensor) {
  return at_edge(Call::nrt_add_tensor_to_tensor_set, [&] {
    require(name, "the name");
    Runtime::instance().tensor_sets.get(set, kTensorSet)->add(name, tensor, tensor_of(tensor));
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* set, const char* name,
                                                          nrt_tensor_t** tensor) {
  return at_edge(Call::nrt_get_tensor_from_tensor_set, [&] {
    require(name, "the name");
    require(tensor, "the result");
    void* const found = Runtime::instance().tensor_sets.get(set, kTensorSet)->find(name);
    if (found == nullptr) refuse(NRT_INVALID, "the set has no tensor named '", name, "'");
    *tensor = found;
    return NRT_SUCCESS;
  });
}
