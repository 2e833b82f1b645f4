// SPDX-License-Identifier: Apache-2.0
// Schema analysis and its cache.
#include "ops/operator_plan.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nxl::ops {
namespace {

// Arguments that torch's own device kernels take from the CPU; everything else mixes devices only through 0-dim CPU
// tensors. {operator name without overload, argument name}
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kCpuArguments{{
    {"aten::index", "indices"},
    {"aten::index_put", "indices"},
    {"aten::index_put_", "indices"},
    {"aten::_index_put_impl", "indices"},
    {"aten::_index_put_impl_", "indices"},
    {"aten::_unsafe_index", "indices"},
    {"aten::_unsafe_index_put", "indices"},
    {"aten::_foreach_addcdiv", "scalars"},
    {"aten::_foreach_addcmul", "scalars"},
    {"aten::_ctc_loss", "input_lengths"},
    {"aten::_ctc_loss", "target_lengths"},
}};

ArgumentKind kind_of(const c10::Argument& argument) {
  const c10::Type& type = *argument.type();
  if (type.isSubtypeOf(*c10::OptionalType::ofTensor())) return ArgumentKind::kTensor;
  c10::TypePtr inner = argument.type();
  if (const auto optional = inner->cast<c10::OptionalType>()) inner = optional->getElementType();
  if (inner->isSubtypeOf(*c10::ListType::ofTensors())) return ArgumentKind::kTensorList;
  if (inner->isSubtypeOf(*c10::ListType::ofOptionalTensors())) return ArgumentKind::kOptionalTensorList;
  if (inner->kind() == c10::DeviceObjType::Kind) return ArgumentKind::kDevice;
  if (inner->kind() == c10::GeneratorType::Kind) return ArgumentKind::kGenerator;
  return ArgumentKind::kOther;
}

std::unique_ptr<OperatorPlan> analyse(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  auto plan = std::make_unique<OperatorPlan>();
  plan->name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  plan->returns = schema.returns().size();
  bool generator = false;
  for (const c10::Argument& argument : schema.arguments()) {
    ArgumentPlan entry;
    entry.kind = kind_of(argument);
    entry.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    for (const auto& [name, cpu_argument] : kCpuArguments) {
      if (schema.name() == name && argument.name() == cpu_argument) entry.stays_on_cpu = true;
    }
    generator |= entry.kind == ArgumentKind::kGenerator;
    plan->writes |= entry.written;
    plan->arguments.push_back(entry);
  }
  plan->hidden_generator = !generator && op.hasTag(at::Tag::nondeterministic_seeded);
  return plan;
}

struct Registry {
  std::mutex mutex;
  std::unordered_map<c10::OperatorHandle, OperatorPlan*> plans;
  std::vector<std::unique_ptr<OperatorPlan>> owned;  // plans outlive their operators: a thread may still hold one
  std::atomic<uint64_t> generation{0};               // moves when an operator goes away
};

// Never destroyed: operators run during static destruction too.
Registry& registry();

class Forget final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.plans.erase(op);
    all.generation.fetch_add(1, std::memory_order_release);
  }
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

OperatorPlan* find_or_make(const c10::OperatorHandle& op) {
  static const bool listening = [] {
    // The listener lives in the dispatcher for as long as the process: the handle that would remove it is leaked.
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Forget>()));
    return true;
  }();
  (void)listening;
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  OperatorPlan*& plan = all.plans[op];
  if (plan == nullptr) {
    all.owned.push_back(analyse(op));
    plan = all.owned.back().get();
  }
  return plan;
}

}  // namespace

OperatorPlan& plan_for(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, OperatorPlan*> known;
  thread_local uint64_t known_generation = 0;
  const uint64_t generation = registry().generation.load(std::memory_order_acquire);
  if (__builtin_expect(generation != known_generation, 0)) {
    known.clear();
    known_generation = generation;
  }
  if (const auto found = known.find(op); found != known.end()) return *found->second;
  OperatorPlan* plan = find_or_make(op);
  known.emplace(op, plan);
  return *plan;
}

void for_each_plan(void (*visit)(OperatorPlan& plan, void* context), void* context) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& plan : all.owned) visit(*plan, context);
}

}  // namespace nxl::ops
