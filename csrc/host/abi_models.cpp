// SPDX-License-Identifier: Apache-2.0
// Exported functions: loading, unloading and describing models.
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>

#include "core/dtype.h"
#include "host/edge.h"

using namespace nxl::host;

namespace {

constexpr const char* kModel = "model";

NRT_STATUS load(const void* neff, size_t size, int32_t vnc, int32_t vnc_count, std::optional<Place> place,
                nrt_model_t** model) {
  if (neff == nullptr || model == nullptr) refuse(NRT_INVALID, "the NEFF or the result is null");
  if (vnc_count != -1 && vnc_count != 1)
    refuse(NRT_INVALID, "vnc_count is ", vnc_count, "; a model takes one core: -1");
  Runtime& runtime = Runtime::instance();
  const std::span bytes(static_cast<const std::byte*>(neff), size);
  *model = runtime.models.insert(std::make_shared<Model>(bytes, runtime.core(vnc), place));
  return NRT_SUCCESS;
}

// NRT has no names for bool (carried as bytes), double and complex.
nrt_dtype_t nrt_dtype_of(nxl::DType dtype) {
  using nxl::DType;
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return NRT_DTYPE_UINT8;
    case DType::kInt8:
      return NRT_DTYPE_INT8;
    case DType::kInt16:
      return NRT_DTYPE_INT16;
    case DType::kUInt16:
      return NRT_DTYPE_UINT16;
    case DType::kInt32:
      return NRT_DTYPE_INT32;
    case DType::kUInt32:
      return NRT_DTYPE_UINT32;
    case DType::kInt64:
      return NRT_DTYPE_INT64;
    case DType::kUInt64:
      return NRT_DTYPE_UINT64;
    case DType::kBFloat16:
      return NRT_DTYPE_BFLOAT16;
    case DType::kFloat16:
      return NRT_DTYPE_FLOAT16;
    case DType::kFloat32:
      return NRT_DTYPE_FLOAT32;
    case DType::kFloat8E4M3FN:
      return NRT_DTYPE_FP8_E4;
    case DType::kFloat8E5M2:
      return NRT_DTYPE_FP8_E5;
    case DType::kFloat64:
    case DType::kComplex64:
    case DType::kComplex128:
      break;
  }
  return NRT_DTYPE_UNKNOWN;
}

// Arrays handed out, so that freeing a foreign pointer is an answer. One block each: the array, then all shapes.
struct InfoArrays {
  std::mutex mutex;
  std::set<nrt_tensor_info_array_t*> live;
};
InfoArrays& info_arrays() {
  static auto* arrays = new InfoArrays;
  return *arrays;
}

nrt_tensor_info_array_t* describe(const Program& program) {
  size_t dims = 0;
  for (const auto* variables : {&program.inputs, &program.outputs}) {
    for (const auto& variable : *variables) dims += variable.shape.size();
  }
  const size_t count = program.inputs.size() + program.outputs.size();
  const size_t head = sizeof(nrt_tensor_info_array_t) + count * sizeof(nrt_tensor_info_t);
  void* block = std::calloc(1, head + dims * sizeof(uint32_t));
  if (block == nullptr) throw std::bad_alloc();
  auto* array = static_cast<nrt_tensor_info_array_t*>(block);
  auto* shape = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(block) + head);
  array->tensor_count = count;
  nrt_tensor_info_t* info = array->tensor_array;
  for (const bool is_input : {true, false}) {
    for (const auto& variable : is_input ? program.inputs : program.outputs) {
      std::strncpy(info->name, variable.name.c_str(), sizeof(info->name) - 1);
      info->usage = is_input ? NRT_TENSOR_USAGE_INPUT : NRT_TENSOR_USAGE_OUTPUT;
      info->size = variable.bytes;
      info->dtype = nrt_dtype_of(variable.dtype);
      info->shape = shape;
      info->ndim = static_cast<uint32_t>(variable.shape.size());
      for (const int64_t extent : variable.shape) *shape++ = static_cast<uint32_t>(extent);
      ++info;
    }
  }
  return array;
}

}  // namespace

NXL_HOST_EXPORT NRT_STATUS nrt_load(const void* neff, size_t size, int32_t vnc, int32_t vnc_count,
                                    nrt_model_t** model) {
  return at_edge(Call::nrt_load, [&] { return load(neff, size, vnc, vnc_count, std::nullopt, model); });
}

NXL_HOST_EXPORT NRT_STATUS nrt_load_collectives(const void* neff, size_t size, int32_t vnc, int32_t vnc_count,
                                                uint32_t ctx_device_id, uint32_t ctx_device_count,
                                                nrt_model_t** model) {
  return at_edge(Call::nrt_load_collectives, [&] {
    if (ctx_device_id >= ctx_device_count) {
      refuse(NRT_INVALID, "device id ", ctx_device_id, " is outside a context of ", ctx_device_count, " devices");
    }
    return load(neff, size, vnc, vnc_count, Place{ctx_device_id, ctx_device_count}, model);
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_unload(nrt_model_t* model) {
  return at_edge(Call::nrt_unload, [&] {
    // Executions in flight hold the model; its memory goes when the last of them is done.
    if (!Runtime::instance().models.remove(model))
      refuse(NRT_INVALID_HANDLE, kModel, " handle ", model, " is not live");
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* model, nrt_tensor_info_array_t** info) {
  return at_edge(Call::nrt_get_model_tensor_info, [&] {
    if (info == nullptr) refuse(NRT_INVALID, "the result is null");
    const auto found = Runtime::instance().models.get(model, kModel);
    InfoArrays& arrays = info_arrays();
    std::lock_guard lock(arrays.mutex);
    const auto slot = arrays.live.insert(describe(found->program())).first;
    *info = *slot;
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* info) {
  if (Runtime::lost_in_fork()) return NRT_CLOSED;
  return at_edge<Needs::kNotClosed>(Call::nrt_free_model_tensor_info, [&] {
    InfoArrays& arrays = info_arrays();
    std::lock_guard lock(arrays.mutex);
    if (arrays.live.erase(info) == 0) refuse(NRT_INVALID_HANDLE, "tensor information ", info, " is not live");
    std::free(info);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_get_model_vnc_count(nrt_model_t* model, uint32_t* count) {
  return at_edge(Call::nrt_get_model_vnc_count, [&] {
    if (count == nullptr) refuse(NRT_INVALID, "the result is null");
    Runtime::instance().models.get(model, kModel);
    *count = 1;
    return NRT_SUCCESS;
  });
}
