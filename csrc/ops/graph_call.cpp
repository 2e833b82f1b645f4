// SPDX-License-Identifier: Apache-2.0
// The call path of compiled graphs.
#include "ops/graph_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "device/allocator.h"
#include "device/error_edge.h"
#include "device/generator.h"
#include "device/memory.h"
#include "loader/core_queue.h"
#include "ops/dtype.h"

namespace nxl::ops {
namespace {

constexpr c10::DispatchKeySet kNeuronKeys{c10::DispatchKey::PrivateUse1};
// How far one call moves the generator's offset: more than any graph draws, so that two calls never share numbers even
// when the graph counts upwards from the offset.
constexpr uint64_t kPhiloxIncrement = uint64_t{1} << 32;

std::vector<TensorSpec> specs_of(const std::vector<neff::Variable>& variables) {
  std::vector<TensorSpec> specs;
  specs.reserve(variables.size());
  for (const neff::Variable& variable : variables) {
    TensorSpec spec;
    spec.name = variable.name;
    spec.bytes = variable.bytes;
    spec.alias_input = variable.alias_input;
    if (variable.has_shape) {
      spec.dtype = scalar_type_of(variable.dtype);
      spec.shape = variable.shape;
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::string describe(const TensorSpec& spec) {
  if (!spec.dtype) return c10::str(spec.bytes, " bytes");
  return c10::str(*spec.dtype, c10::IntArrayRef(spec.shape));
}

at::Tensor empty_on(c10::DeviceIndex device, const TensorSpec& spec) {
  nxl::device::NeuronAllocator& allocator = nxl::device::allocator();
  auto storage =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), spec.bytes,
                                            allocator.allocate_on(device, spec.bytes), &allocator, /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), kNeuronKeys, c10::scalarTypeToTypeMeta(spec.dtype.value_or(c10::ScalarType::Byte)));
  if (spec.dtype) {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(spec.shape);
  } else {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(spec.bytes)});
  }
  return tensor;
}

}  // namespace

LoadedGraph::LoadedGraph(std::span<const std::byte> neff, c10::DeviceIndex device, uint32_t rank, uint32_t world_size)
    : device_(nxl::device::resolve_device(device)) {
  executable_ = nxl::device::at_torch_edge([&] { return loader::Executable::load(neff, device_, {rank, world_size}); });
  inputs_ = specs_of(executable_->inputs());
  outputs_ = specs_of(executable_->outputs());
}

void LoadedGraph::close() {
  if (closed_.exchange(true)) return;
  nxl::device::at_torch_edge([&] { executable_->close(); });
}

GraphCall::GraphCall(std::shared_ptr<LoadedGraph> graph, std::vector<int64_t> argument_indices,
                     std::vector<GraphResult> results, bool has_rng_seed)
    : graph_(std::move(graph)),
      argument_indices_(std::move(argument_indices)),
      results_(std::move(results)),
      has_rng_seed_(has_rng_seed),
      input_is_written_(graph_->inputs().size(), false) {
  const auto& inputs = graph_->inputs();
  const auto& outputs = graph_->outputs();
  TORCH_CHECK_VALUE(argument_indices_.size() + (has_rng_seed_ ? 1 : 0) == inputs.size(), "the executable has ",
                    inputs.size(), " inputs, but ", argument_indices_.size(), " argument indices",
                    has_rng_seed_ ? " and a random seed" : "", " were given");
  for (const int64_t index : argument_indices_) {
    TORCH_CHECK_VALUE(index >= 0, "argument index ", index, " is negative");
    least_arguments_ = std::max(least_arguments_, index + 1);
  }
  if (has_rng_seed_) {
    TORCH_CHECK_VALUE(inputs.back().bytes == 2 * sizeof(int64_t),
                      "the random seed is the last input, i64[2] (16 "
                      "bytes), but '",
                      inputs.back().name, "' has ", inputs.back().bytes, " bytes");
  }
  for (const TensorSpec& output : outputs) {
    if (output.alias_input < 0) continue;
    const auto input = static_cast<size_t>(output.alias_input);
    TORCH_CHECK_VALUE(input < argument_indices_.size(), "output '", output.name, "' aliases input ", input,
                      ", which no argument feeds");
    input_is_written_[input] = true;
  }
  for (GraphResult& result : results_) {
    if (result.kind == GraphResult::Kind::kOutput) {
      TORCH_CHECK_VALUE(result.index >= 0 && static_cast<size_t>(result.index) < outputs.size(),
                        "result plan names "
                        "output ",
                        result.index, ", but the executable has ", outputs.size());
      const int alias = outputs[result.index].alias_input;
      if (alias >= 0) result = {GraphResult::Kind::kInput, argument_indices_[alias]};
    } else if (result.kind == GraphResult::Kind::kInput) {
      TORCH_CHECK_VALUE(result.index >= 0, "result plan names argument ", result.index);
      least_arguments_ = std::max(least_arguments_, result.index + 1);
    }
  }
}

void GraphCall::refuse_input(size_t input, const at::Tensor* tensor) const {
  const TensorSpec& spec = graph_->inputs()[input];
  std::string got = "no tensor";
  if (tensor != nullptr && tensor->defined()) {
    got = c10::str(tensor->scalar_type(), tensor->sizes(), " on ", tensor->device());
    if (tensor->layout() != c10::kStrided) got += c10::str(" with layout ", tensor->layout());
  }
  TORCH_CHECK_VALUE(false, "compiled graph, argument ", argument_indices_[input], " (input '", spec.name,
                    "'): expected ", describe(spec), " on neuron:", static_cast<int>(graph_->device()), ", got ", got);
}

void GraphCall::check_input(size_t input, const at::Tensor& tensor) const {
  const TensorSpec& spec = graph_->inputs()[input];
  const bool fits = tensor.defined() && tensor.layout() == c10::kStrided &&
                    tensor.device() == c10::Device(c10::DeviceType::PrivateUse1, graph_->device()) &&
                    (spec.dtype ? tensor.scalar_type() == *spec.dtype && tensor.sizes() == c10::IntArrayRef(spec.shape)
                                : static_cast<uint64_t>(tensor.numel() * tensor.element_size()) == spec.bytes);
  if (__builtin_expect(!fits, 0)) refuse_input(input, &tensor);
}

at::Tensor GraphCall::make_seed() const {
  const auto& generator = nxl::device::default_generator(graph_->device());
  const auto [seed, offset] = generator.get<nxl::device::NeuronGenerator>()->reserve_philox(kPhiloxIncrement);
  at::Tensor tensor = empty_on(graph_->device(), graph_->inputs().back());
  const auto value = std::make_shared<std::pair<uint64_t, uint64_t>>(seed, offset);
  const nxl::device::Location where = nxl::device::locate(tensor.const_data_ptr());
  loader::CoreQueue::of(graph_->device()).write(where.segment, value.get(), where.offset, sizeof(*value), value);
  return tensor;
}

std::vector<at::Tensor> GraphCall::run(std::span<const at::Tensor* const> arguments) const {
  TORCH_CHECK(!graph_->closed(), "this compiled graph was closed: its executable is no longer loaded");
  TORCH_CHECK_VALUE(arguments.size() >= static_cast<size_t>(least_arguments_), "compiled graph takes ",
                    least_arguments_, " arguments, got ", arguments.size());
  const size_t fed = argument_indices_.size();
  c10::SmallVector<nrt_tensor_t*, 32> inputs(graph_->inputs().size(), nullptr);
  c10::SmallVector<nrt_tensor_t*, 32> outputs(graph_->outputs().size(), nullptr);
  // Contiguous stand-ins of inputs that are not; they live until the execution is queued, then queue order guards them.
  c10::SmallVector<std::pair<size_t, at::Tensor>, 2> packed;
  for (size_t i = 0; i < fed; ++i) {
    const at::Tensor* tensor = arguments[argument_indices_[i]];
    if (__builtin_expect(tensor == nullptr, 0)) refuse_input(i, nullptr);
    check_input(i, *tensor);
    if (__builtin_expect(!tensor->is_contiguous() || tensor->is_conj() || tensor->is_neg(), 0)) {
      packed.emplace_back(i, tensor->resolve_conj().resolve_neg().contiguous());
      tensor = &packed.back().second;
    }
    inputs[i] = nxl::device::tensor_handle(*tensor);
  }
  at::Tensor seed;
  if (has_rng_seed_) {
    seed = nxl::device::at_torch_edge([&] { return make_seed(); });
    inputs[fed] = nxl::device::tensor_handle(seed);
  }
  std::vector<at::Tensor> results(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorSpec& spec = graph_->outputs()[i];
    if (spec.alias_input >= 0) {
      outputs[i] = inputs[spec.alias_input];
      continue;
    }
    results[i] = empty_on(graph_->device(), spec);
    outputs[i] = nxl::device::tensor_handle(results[i]);
  }
  uint64_t ticket = 0;
  const Status status =
      graph_->executable().run(std::span<nrt_tensor_t* const>(inputs.data(), inputs.size()),
                               std::span<nrt_tensor_t* const>(outputs.data(), outputs.size()), &ticket);
  if (__builtin_expect(!status.is_ok(), 0)) nxl::device::throw_if_failed(status, "compiled graph");
  for (size_t i = 0; i < fed; ++i) {
    if (!input_is_written_[i]) continue;
    const at::Tensor& tensor = *arguments[argument_indices_[i]];
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
  for (const auto& [input, stand_in] : packed) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // the version was bumped above
    if (input_is_written_[input]) arguments[argument_indices_[input]]->copy_(stand_in);
  }
  return results;
}

}  // namespace nxl::ops
