// SPDX-License-Identifier: Apache-2.0
// Loading and executing.
#include "host/models.h"

#include <algorithm>

#include "host/collectives/collective.h"
#include "host/faults.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

std::atomic<uint64_t> next_model_id{1};

// Waking the core's thread costs about as much as this many bytes or steps: below both, the caller's thread is faster.
constexpr uint64_t kSmallBytes = 64 << 10;
constexpr size_t kSmallSteps = 8;

bool is_small_program(const Program& program) {
  // What waits for other ranks never runs on the caller's thread.
  if (program.steps.size() > kSmallSteps || replicas_of(program) != 0) return false;
  uint64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) bytes += std::min(buffer.bytes, kSmallBytes);
  return bytes < kSmallBytes;
}

class Execution : public Work {
 public:
  Execution(std::shared_ptr<Model> model, std::shared_ptr<const Binding> inputs, std::shared_ptr<const Binding> outputs,
            int count)
      : model_(std::move(model)), inputs_(std::move(inputs)), outputs_(std::move(outputs)), count_(count) {}

  bool may_run_inline() const override {
    return count_ == 1 && model_->is_small() && model_->core()->inline_programs() && !Faults::instance().active();
  }

  Status run(int threads) override {
    if (const NRT_STATUS injected = Faults::instance().inject(Call::execute); injected != NRT_SUCCESS) {
      return {injected, "model '" + model_->name() + "': injected fault"};
    }
    Status status;
    for (int i = 0; i < count_ && status.is_ok(); ++i) {
      status = model_->prepared().run(inputs_->addresses, outputs_->addresses, threads);
    }
    if (!status.is_ok()) {
      status.message = "model '" + model_->name() + "': " + status.message;
      return status;
    }
    for (const Binding::Entry& entry : outputs_->entries) entry.tensor->count_completion();
    return status;
  }

 private:
  const std::shared_ptr<Model> model_;
  const std::shared_ptr<const Binding> inputs_;
  const std::shared_ptr<const Binding> outputs_;
  const int count_;
};

void check_aliasing(const Model& model, const Binding& inputs, const Binding& outputs) {
  const auto& variables = model.program().outputs;
  for (const Binding::Range& range : outputs.sorted) {
    const neff::Variable& variable = variables[range.index];
    if (variable.alias_input >= 0) {
      const auto& input = model.program().inputs[static_cast<size_t>(variable.alias_input)];
      if (inputs.addresses[static_cast<size_t>(variable.alias_input)] != range.begin) {
        refuse(NRT_INVALID, "output '", variable.name, "' is the memory of input '", input.name,
               "': both names must be given one tensor");
      }
    } else if (const Binding::Range* shared = inputs.overlapping(range.begin, range.end)) {
      refuse(NRT_INVALID, "output '", variable.name, "' shares memory with input '",
             model.program().inputs[shared->index].name, "', which it does not alias");
    }
  }
  for (size_t i = 1; i < outputs.sorted.size(); ++i) {
    const Binding::Range& left = outputs.sorted[i - 1];
    const Binding::Range& right = outputs.sorted[i];
    const int alias = variables[left.index].alias_input;
    if (right.begin < left.end && (alias < 0 || variables[right.index].alias_input != alias)) {
      refuse(NRT_INVALID, "outputs '", variables[left.index].name, "' and '", variables[right.index].name,
             "' share memory");
    }
  }
}

std::shared_ptr<World> world_for(const std::string& name, uint32_t replicas, std::optional<Place> place) {
  if (!place && replicas > 1) {
    refuse(NRT_INVALID, "NEFF '", name, "' has collectives of ", replicas,
           " ranks: load it with nrt_load_collectives, which says which rank this is");
  }
  const Place known = place.value_or(Place{});
  if (known.count != replicas) {
    refuse(NRT_INVALID, "NEFF '", name, "' was compiled for ", replicas, " ranks and is loaded by rank ", known.rank,
           " of ", known.count, "; compile it again in the world that runs it");
  }
  return Worlds::instance().get(known.rank, known.count);
}

}  // namespace

Model::Model(std::span<const std::byte> bytes, std::shared_ptr<Core> core, std::optional<Place> place)
    : id_(next_model_id.fetch_add(1)), core_(std::move(core)) {
  {
    const neff::Neff neff = neff::Neff::open(bytes);
    name_ = neff.header().name;
    if (neff.target() != "host") {
      refuse(NRT_INVALID, "NEFF '", name_, "' was built for the target '", neff.target(),
             "' and this is the host runtime; build it with --target host (NEURON_PLATFORM_TARGET_OVERRIDE=host)");
    }
    program_ = Program::from_neff(neff);
  }
  std::shared_ptr<World> world;
  if (const uint32_t replicas = replicas_of(program_)) world = world_for(name_, replicas, place);
  constants_ = core_->memory()->reserve(program_.constants.size());
  arena_ = core_->memory()->allocate(program_.arena_bytes);
  prepared_ = PreparedProgram::prepare(program_, {arena_->address(), program_.arena_bytes}, world);
  small_ = is_small_program(program_);
  core_->model_loaded();
}

Model::~Model() { core_->model_unloaded(); }

std::unique_ptr<Work> make_execution(std::shared_ptr<Model> model, TensorSet& inputs, TensorSet& outputs, int count) {
  const Program& program = model->program();
  const int core = model->core()->index();
  auto bound_inputs = inputs.bind(model->id(), program.inputs, core, "input");
  auto bound_outputs = outputs.bind(model->id(), program.outputs, core, "output");
  check_aliasing(*model, *bound_inputs, *bound_outputs);
  return std::make_unique<Execution>(std::move(model), std::move(bound_inputs), std::move(bound_outputs), count);
}

}  // namespace nxl::host
