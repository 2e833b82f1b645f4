// SPDX-License-Identifier: Apache-2.0
// nrt_load, nrt_unload and the tensor list of a model.
#include "nrt/model.h"

#include <cstring>
#include <utility>

#include "core/log.h"

namespace nxl::nrt {

Model::Model(Model&& other) noexcept
    : runtime_(std::move(other.runtime_)), handle_(std::exchange(other.handle_, nullptr)) {}

Model& Model::operator=(Model&& other) noexcept {
  if (this != &other) {
    unload();
    runtime_ = std::move(other.runtime_);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

Model::~Model() { unload(); }

Model Model::load(std::shared_ptr<Runtime> runtime, std::span<const std::byte> neff, int core, const std::string& name,
                  Place place) {
  runtime->check_core(core);
  const Api& api = runtime->api();
  const bool collectives = place.count > 1;
  NXL_CHECK(!collectives || api.nrt_load_collectives != nullptr, kUnsupported, "the executable '", name,
            "' joins collectives of ", place.count, " ranks and ", runtime->choice().dlopen_name,
            " has no nrt_load_collectives; update the Neuron runtime");
  Model model;
  const int status = collectives ? api.nrt_load_collectives(neff.data(), neff.size(), core, -1 /* vnc_count */,
                                                            place.rank, place.count, &model.handle_)
                                 : api.nrt_load(neff.data(), neff.size(), core, -1 /* vnc_count */, &model.handle_);
  if (status == NRT_RESOURCE || status == NRT_FAIL_HOST_MEM_ALLOC) {
    const auto [used, limit] = runtime->memory(core);
    throw_error(ErrorKind::kOutOfMemory,
                detail::concat("neuron:", core, " is out of memory: the executable '", name, "' does not fit, ", used,
                               " bytes of ", limit, " are in use (", runtime->status_name(status), ")"),
                status);
  }
  NXL_NRT_CHECK(status, collectives ? "nrt_load_collectives" : "nrt_load",
                detail::concat("executable '", name, "' on core ", core));
  model.runtime_ = std::move(runtime);
  return model;
}

std::vector<ModelTensor> Model::tensors() const {
  nrt_tensor_info_array_t* array = nullptr;
  NXL_NRT_CHECK(runtime_->api().nrt_get_model_tensor_info(handle_, &array), "nrt_get_model_tensor_info",
                "after nrt_load");
  std::vector<ModelTensor> out;
  for (uint64_t i = 0; i < array->tensor_count; ++i) {
    const nrt_tensor_info_t& info = array->tensor_array[i];
    ModelTensor tensor;
    tensor.name.assign(info.name, strnlen(info.name, sizeof(info.name)));
    tensor.is_output = info.usage == NRT_TENSOR_USAGE_OUTPUT;
    tensor.bytes = info.size;
    tensor.dtype = info.dtype;
    if (info.shape != nullptr) tensor.shape.assign(info.shape, info.shape + info.ndim);
    out.push_back(std::move(tensor));
  }
  runtime_->api().nrt_free_model_tensor_info(array);
  return out;
}

void Model::unload() noexcept {
  nrt_model_t* const handle = std::exchange(handle_, nullptr);
  if (handle == nullptr) return;
  const OpenScope scope(runtime_.get());
  if (!scope) return;
  const int status = runtime_->api().nrt_unload(handle);
  if (status != NRT_SUCCESS) NXL_LOG(kWarning, "nrt_unload failed with ", runtime_->status_name(status));
}

}  // namespace nxl::nrt
