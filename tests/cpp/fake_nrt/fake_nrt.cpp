// SPDX-License-Identifier: Apache-2.0
// An NRT library for tests: the interface as nrt_abi.h declares it, time in the hands of the test.
#include "fake_nrt/fake_nrt.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "fake_nrt/fake_state.h"
#include "neff/reader.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace nxl::test;

#define FAKE_ENTER                          \
  Fake& f = fake();                         \
  const std::lock_guard fake_lock(f.mutex); \
  if (const NRT_STATUS entered = f.enter(); entered != NRT_SUCCESS) return entered

FAKE_EXPORT FakeNrt* fake_nrt_instance() { return &fake(); }

FAKE_EXPORT NRT_STATUS nrt_init(nrt_framework_type_t, const char*, const char*) {
  return fake().with_lock([] {
    if (fake().init_status != NRT_SUCCESS) return fake().init_status;
    if (fake().initialised) fake().broken.push_back("nrt_init twice");
    fake().initialised = true;
    return NRT_SUCCESS;
  });
}
FAKE_EXPORT void nrt_close() {
  fake().with_lock([] { ++fake().closes; });
}
FAKE_EXPORT NRT_STATUS nrt_get_version(nrt_version_t* version, size_t) {
  // It stands for the runtime that was asked for, unless a test wants the mismatch.
  const char* wanted = std::getenv("FAKE_NRT_STANDS_FOR");
  if (wanted == nullptr) wanted = std::getenv("NEURON_LIBTORCH_RUNTIME");
  const bool host = wanted != nullptr && std::strcmp(wanted, "host") == 0;
  *version = {2, 0, 51864, 0, "", ""};
  std::strcpy(version->rt_detail, host ? "libnrt_host stand-in" : "stand-in");
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t) {
  *info = {};
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_get_total_vnc_count(uint32_t* count) {
  *count = 2;
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_get_visible_vnc_count(uint32_t* count) {
  *count = 2;
  return NRT_SUCCESS;
}
FAKE_EXPORT const char* nrt_get_status_as_str(NRT_STATUS status) {
  switch (status) {
    case NRT_INVALID:
      return "NRT_INVALID";
    case NRT_RESOURCE:
      return "NRT_RESOURCE";
    case NRT_EXEC_NC_BUSY:
      return "NRT_EXEC_NC_BUSY";
    case NRT_EXEC_OOB:
      return "NRT_EXEC_OOB";
    case NRT_HW_ERROR:
      return "NRT_HW_ERROR";
    case NRT_INVALID_HANDLE:
      return "NRT_INVALID_HANDLE";
    default:
      return "NRT_OTHER";
  }
}
FAKE_EXPORT NRT_STATUS nrt_load(const void* bytes, size_t size, int32_t, int32_t vnc_count, nrt_model_t** out) {
  FAKE_ENTER;
  if (vnc_count != -1) return NRT_INVALID;
  const auto neff = nxl::neff::Neff::open({static_cast<const std::byte*>(bytes), size});
  if (neff.header().name == "too big") return NRT_RESOURCE;
  auto model = std::make_unique<Model>();
  model->inputs = neff.inputs();
  model->outputs = neff.outputs();
  *out = model.get();
  f.models[*out] = std::move(model);
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_unload(nrt_model_t* handle) {
  FAKE_ENTER;
  for (const Work& work : f.queues[NRTA_XU_COMPUTE]) {
    if (work.model == handle) f.broken.push_back("unloaded a model with work in flight");
  }
  return f.models.erase(handle) == 1 ? NRT_SUCCESS : NRT_INVALID_HANDLE;
}
FAKE_EXPORT NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* handle, nrt_tensor_info_array_t** out) {
  FAKE_ENTER;
  const Model& model = *f.models.at(handle);
  const size_t count = model.inputs.size() + model.outputs.size();
  auto* array = static_cast<nrt_tensor_info_array_t*>(
      std::calloc(1, sizeof(nrt_tensor_info_array_t) + count * sizeof(nrt_tensor_info_t)));
  // Outputs first and backwards: the order is NRT's own.
  const auto append = [&](const nxl::neff::Variable& variable, nrt_tensor_usage_t usage) {
    nrt_tensor_info_t& info = array->tensor_array[array->tensor_count++];
    std::strncpy(info.name, variable.name.c_str(), sizeof(info.name) - 1);
    info.usage = usage;
    info.size = variable.bytes;
    info.dtype = NRT_DTYPE_UINT8;
    info.ndim = 1;
    info.shape = static_cast<uint32_t*>(std::malloc(sizeof(uint32_t)));
    info.shape[0] = static_cast<uint32_t>(variable.bytes);
  };
  for (auto it = model.outputs.rbegin(); it != model.outputs.rend(); ++it) append(*it, NRT_TENSOR_USAGE_OUTPUT);
  for (auto it = model.inputs.rbegin(); it != model.inputs.rend(); ++it) append(*it, NRT_TENSOR_USAGE_INPUT);
  *out = array;
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* array) {
  for (uint64_t i = 0; i < array->tensor_count; ++i) std::free(array->tensor_array[i].shape);
  std::free(array);
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** out) {
  FAKE_ENTER;
  auto set = std::make_unique<Set>();
  *out = set.get();
  f.sets[*out] = std::move(set);
  return NRT_SUCCESS;
}
FAKE_EXPORT void nrt_destroy_tensor_set(nrt_tensor_set_t** handle) {
  fake().with_lock([&] {
    if (fake().enter() == NRT_SUCCESS) fake().sets.erase(*handle);
    *handle = nullptr;
  });
}
FAKE_EXPORT NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* handle, const char* name, nrt_tensor_t* tensor) {
  FAKE_ENTER;
  ++f.add_calls;
  if (!f.tensors.contains(tensor)) return NRT_INVALID_HANDLE;
  f.sets.at(handle)->tensors[name] = tensor;
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_execute(nrt_model_t*, const nrt_tensor_set_t*, nrt_tensor_set_t*) { return NRT_FAILURE; }
#if !defined(FAKE_NRT_INCOMPLETE)
FAKE_EXPORT NRT_STATUS nrta_execute_schedule(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, int,
                                             nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
  FAKE_ENTER;
  if (f.refusals > 0) {
    --f.refusals;
    return f.refusal;
  }
  Work work;
  work.model = static_cast<Model*>(model);
  work.inputs = f.sets.at(const_cast<nrt_tensor_set_t*>(in))->tensors;
  work.outputs = f.sets.at(out)->tensors;
  work.tracker = tracker;
  return f.schedule(NRTA_XU_COMPUTE, std::move(work), sequence);
}
#endif
FAKE_EXPORT NRT_STATUS nrta_is_completed(nrta_seq_t sequence, bool* completed) {
  FAKE_ENTER;
  if (f.query_status != NRT_SUCCESS) return f.query_status;
  *completed = f.completed[sequence >> 48] >= (sequence & 0xFFFFFFFFFFFF);
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrta_get_completion_handle(nrta_seq_t sequence, int* fd) {
  FAKE_ENTER;
  if (!f.completion_fd_works) return NRT_RESOURCE;
  ++f.fds;
  *fd = eventfd(0, EFD_CLOEXEC);
  bool waiting = false;
  for (Work& work : f.queues[sequence >> 48]) {
    if (work.sequence != sequence) continue;
    work.watchers.push_back(fcntl(*fd, F_DUPFD_CLOEXEC, 0));
    waiting = true;
  }
  const uint64_t one = 1;
  if (!waiting && ::write(*fd, &one, sizeof(one)) != sizeof(one)) return NRT_FAILURE;
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrta_error_tracker_create(uint32_t, nrta_error_tracker_t** tracker) {
  *tracker = new nrta_error_tracker;
  return NRT_SUCCESS;
}
FAKE_EXPORT void nrta_error_tracker_destroy(nrta_error_tracker_t* tracker) { delete tracker; }
FAKE_EXPORT NRT_STATUS nrta_error_tracker_get_list(nrta_error_tracker_t* tracker, const nrta_error_t** list,
                                                   size_t* count) {
  FAKE_ENTER;
  tracker->fetched = tracker->errors;
  if (!f.tracker_keeps) tracker->errors.clear();
  *list = tracker->fetched.data();
  *count = tracker->fetched.size();
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_async_drain_queued_execs(int32_t) { return NRT_SUCCESS; }
FAKE_EXPORT NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int, size_t size, const char*,
                                           nrt_tensor_t** out) {
  FAKE_ENTER;
  const bool device = placement == NRT_TENSOR_PLACEMENT_DEVICE;
  if (device && f.used() + size > f.memory_limit) return NRT_RESOURCE;
  *out = reinterpret_cast<void*>(f.next_handle += 16);
  f.tensors[*out] = {std::make_shared<std::vector<uint8_t>>(size), 0, size, device};
  return NRT_SUCCESS;
}
FAKE_EXPORT void nrt_tensor_free(nrt_tensor_t** tensor) {
  fake().with_lock([&] {
    if (fake().enter() == NRT_SUCCESS) {
      for (const auto& [handle, set] : fake().sets) {
        for (const auto& [name, named] : set->tensors) {
          if (named == *tensor) fake().broken.push_back("freed a tensor that a set names: " + name);
        }
      }
      fake().tensors.erase(*tensor);
    }
    *tensor = nullptr;
  });
}
FAKE_EXPORT NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buffer, size_t offset, size_t size) {
  FAKE_ENTER;
  std::memcpy(buffer, f.tensors.at(const_cast<nrt_tensor_t*>(tensor)).data() + offset, size);
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buffer, size_t offset, size_t size) {
  FAKE_ENTER;
  std::memcpy(f.tensors.at(tensor).data() + offset, buffer, size);
  return NRT_SUCCESS;
}
FAKE_EXPORT NRT_STATUS nrt_tensor_copy(const nrt_tensor_t*, size_t, nrt_tensor_t*, size_t, size_t) {
  return NRT_FAILURE;
}
FAKE_EXPORT size_t nrt_tensor_get_size(const nrt_tensor_t* tensor) {
  return fake().with_lock([&]() -> size_t {
    const auto found = fake().tensors.find(const_cast<nrt_tensor_t*>(tensor));
    return found == fake().tensors.end() ? 0 : found->second.bytes;
  });
}
FAKE_EXPORT NRT_STATUS nrt_tensor_memset(nrt_tensor_t*, uint64_t, int, size_t) { return NRT_FAILURE; }
FAKE_EXPORT NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* source, size_t offset, size_t size, const char*,
                                                 nrt_tensor_t** out) {
  FAKE_ENTER;
  const Tensor& whole = f.tensors.at(const_cast<nrt_tensor_t*>(source));
  *out = reinterpret_cast<void*>(f.next_handle += 16);
  f.tensors[*out] = {whole.storage, whole.offset + offset, size, whole.device};
  return NRT_SUCCESS;
}
FAKE_EXPORT void* nrt_tensor_get_va(const nrt_tensor_t* tensor) {
  return fake().with_lock([&]() -> void* {
    const Tensor& found = fake().tensors.at(const_cast<nrt_tensor_t*>(tensor));
    return found.device && !fake().device_memory_mapped ? nullptr : found.data();
  });
}
FAKE_EXPORT NRT_STATUS nrta_tensor_write(nrt_tensor_t* tensor, const void* buffer, uint64_t offset, uint64_t size, int,
                                         nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
  FAKE_ENTER;
  const auto found = f.tensors.find(tensor);
  if (found == f.tensors.end() || offset + size > found->second.bytes) return NRT_INVALID;
  Work work;
  work.tensor = tensor, work.buffer = const_cast<void*>(buffer), work.offset = offset, work.bytes = size;
  work.tracker = tracker;
  return f.schedule(NRTA_XU_TENSOR_WRITE, std::move(work), sequence);
}
FAKE_EXPORT NRT_STATUS nrta_tensor_read(void* buffer, nrt_tensor_t* tensor, uint64_t offset, uint64_t size, int,
                                        nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
  FAKE_ENTER;
  const auto found = f.tensors.find(tensor);
  if (found == f.tensors.end() || offset + size > found->second.bytes) return NRT_INVALID;
  Work work;
  work.tensor = tensor, work.buffer = buffer, work.offset = offset, work.bytes = size, work.tracker = tracker;
  return f.schedule(NRTA_XU_TENSOR_READ, std::move(work), sequence);
}
FAKE_EXPORT NRT_STATUS nrta_tensor_copy(nrt_tensor_t*, uint64_t, nrt_tensor_t*, uint64_t, uint64_t, int,
                                        nrta_error_tracker_t*, nrta_seq_t*) {
  return NRT_FAILURE;
}
FAKE_EXPORT NRT_STATUS nrt_get_vnc_memory_stats(uint32_t, nrt_vnc_memory_stats_t* stats, size_t, size_t* written) {
  FAKE_ENTER;
  *stats = {f.used(), f.memory_limit};
  *written = sizeof(*stats);
  return NRT_SUCCESS;
}
