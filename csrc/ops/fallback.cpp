// SPDX-License-Identifier: Apache-2.0
// The boxed CPU fallback: every operator without a neuron kernel runs its CPU kernel on the tensors' memory.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>

#include "device/generator.h"
#include "device/memory.h"
#include "ops/fallback_policy.h"
#include "ops/host_scope.h"
#include "ops/operator_plan.h"

namespace nxl::ops {
namespace {

using c10::DeviceType;
using c10::IValue;
using Stack = torch::jit::Stack;

void apply_policy(OperatorPlan& plan) {
  plan.calls.fetch_add(1, std::memory_order_relaxed);
  switch (fallback_mode()) {
    case FallbackMode::kAllow:
      return;
    case FallbackMode::kWarn:
      if (!plan.warned.load(std::memory_order_relaxed) && !plan.warned.exchange(true)) {
        TORCH_WARN(plan.name,
                   " runs on the host CPU: neuron executes compiled graphs only. This is said once per "
                   "operator; NEURON_LIBTORCH_EAGER_FALLBACK=allow silences it, error refuses such calls.");
      }
      return;
    case FallbackMode::kError:
      TORCH_CHECK_NOT_IMPLEMENTED(false, plan.name,
                                  " has no neuron kernel, and NEURON_LIBTORCH_EAGER_FALLBACK=error "
                                  "forbids running it on the host CPU. Compile the model, or set the variable to warn "
                                  "or allow.");
  }
}

// Lends the device's CPU stream to kernels that draw from the default CPU generator without asking for one.
class LentGenerator {
 public:
  LentGenerator(bool lend, c10::DeviceIndex device) {
    if (!lend) return;
    device_ = nxl::device::cpu_generator_for(std::nullopt, device);
    swap();
  }
  LentGenerator(const LentGenerator&) = delete;
  LentGenerator& operator=(const LentGenerator&) = delete;
  ~LentGenerator() {
    if (device_.defined()) swap();
  }

 private:
  void swap() {
    at::CPUGeneratorImpl* ours = device_.get<at::CPUGeneratorImpl>();
    at::CPUGeneratorImpl* theirs = at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
    const std::scoped_lock lock(ours->mutex_, theirs->mutex_);
    const at::mt19937 engine = ours->engine();
    const auto float_sample = ours->next_float_normal_sample();
    const auto double_sample = ours->next_double_normal_sample();
    ours->set_engine(theirs->engine());
    ours->set_next_float_normal_sample(theirs->next_float_normal_sample());
    ours->set_next_double_normal_sample(theirs->next_double_normal_sample());
    theirs->set_engine(engine);
    theirs->set_next_float_normal_sample(float_sample);
    theirs->set_next_double_normal_sample(double_sample);
  }
  at::Generator device_;
};

bool is_neuron(const at::Tensor& tensor) { return tensor.device().type() == DeviceType::PrivateUse1; }

// Calls visit(tensor) for each defined tensor of an argument.
template <typename Visit>
void visit_tensors(const IValue& value, ArgumentKind kind, Visit&& visit) {
  if (kind == ArgumentKind::kTensor) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
  } else if (kind == ArgumentKind::kTensorList && !value.isNone()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (kind == ArgumentKind::kOptionalTensorList && !value.isNone()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor.has_value() && tensor->defined()) visit(*tensor);
    }
  }
}

// One call of one operator: `arguments` is the operator's window of the stack.
class Call {
 public:
  Call(const OperatorPlan& plan, IValue* arguments) : plan_(plan), arguments_(arguments) {}

  // The device of the call; throws torch's text when the tensors are spread over devices.
  c10::DeviceIndex find_device();
  // Replaces neuron tensors, devices and generators by what the CPU kernel takes.
  void open(HostScope& scope);
  // After the kernel: makes its writes and resizes visible in the caller's tensors.
  void settle(HostScope& scope) const;
  IValue adopt(HostScope& scope, IValue&& result) const;

 private:
  at::Tensor adopt_tensor(HostScope& scope, const at::Tensor& result) const;

  const OperatorPlan& plan_;
  IValue* arguments_;
  bool results_stay_ = false;                      // the device argument asks for the CPU
  c10::SmallVector<at::Tensor, 2> written_;        // neuron tensors that the operator may write
  c10::SmallVector<at::Tensor, 2> cpu_arguments_;  // a result that IS one of these stays where it is
};

c10::DeviceIndex Call::find_device() {
  std::optional<c10::Device> neuron;
  std::optional<c10::Device> foreign;  // of the first tensor that may not be mixed with the neuron ones
  std::optional<c10::Device> requested;
  std::optional<c10::Device> generator;
  for (size_t i = 0; i < plan_.arguments.size(); ++i) {
    const ArgumentPlan& argument = plan_.arguments[i];
    if (argument.kind == ArgumentKind::kDevice && arguments_[i].isDevice()) requested = arguments_[i].toDevice();
    if (argument.kind == ArgumentKind::kGenerator && !arguments_[i].isNone()) {
      generator = arguments_[i].toGenerator().device();
    }
    visit_tensors(arguments_[i], argument.kind, [&](const at::Tensor& tensor) {
      const c10::Device device = tensor.device();
      if (device.type() == DeviceType::PrivateUse1) {
        if (argument.written) written_.push_back(tensor);
        if (!neuron) {
          neuron = device;
        } else if (*neuron != device) {
          foreign = device;
        }
        return;
      }
      const bool mixes = device.is_cpu() && !argument.written && (tensor.dim() == 0 || argument.stays_on_cpu);
      if (!mixes && !foreign) foreign = device;
      if (device.is_cpu()) cpu_arguments_.push_back(tensor);
    });
  }
  TORCH_CHECK(!neuron || !foreign, "Expected all tensors to be on the same device, but found at least two devices, ",
              *neuron, " and ", *foreign, "! (when calling ", plan_.name, ")");
  // The other way round, a CPU generator for neuron tensors, is allowed: it gives the CPU's numbers.
  TORCH_CHECK(neuron || !foreign || !generator || generator->type() != DeviceType::PrivateUse1, "Expected a '",
              foreign->type(), "' device type for generator but found '", *generator, "' (when calling ", plan_.name,
              ")");
  results_stay_ = requested && requested->is_cpu();
  if (neuron) return neuron->index();
  const bool has_index = requested && requested->type() == DeviceType::PrivateUse1 && requested->has_index();
  return nxl::device::resolve_device(has_index ? requested->index() : static_cast<c10::DeviceIndex>(-1));
}

void Call::open(HostScope& scope) {
  if (scope.staged()) {
    for (size_t i = 0; i < plan_.arguments.size(); ++i) {
      visit_tensors(arguments_[i], plan_.arguments[i].kind, [&](const at::Tensor& tensor) {
        if (is_neuron(tensor)) scope.expect(tensor);
      });
    }
  }
  const auto opened = [&](const at::Tensor& tensor) {
    return tensor.defined() && is_neuron(tensor) ? scope.open(tensor) : tensor;
  };
  for (size_t i = 0; i < plan_.arguments.size(); ++i) {
    IValue& value = arguments_[i];
    switch (plan_.arguments[i].kind) {
      case ArgumentKind::kOther:
        break;
      case ArgumentKind::kTensor:
        if (value.isTensor() && value.toTensor().defined() && is_neuron(value.toTensor())) {
          value = scope.open(value.toTensor());
        }
        break;
      case ArgumentKind::kTensorList:
        if (!value.isNone()) {
          c10::List<at::Tensor> list;
          for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(opened(tensor));
          value = std::move(list);
        }
        break;
      case ArgumentKind::kOptionalTensorList:
        if (!value.isNone()) {
          c10::List<std::optional<at::Tensor>> list;
          for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
            list.push_back(tensor.has_value() ? std::optional<at::Tensor>(opened(*tensor)) : std::nullopt);
          }
          value = std::move(list);
        }
        break;
      case ArgumentKind::kDevice:
        if (value.isDevice() && value.toDevice().type() == DeviceType::PrivateUse1) value = c10::Device(c10::kCPU);
        break;
      case ArgumentKind::kGenerator:
        value = nxl::device::cpu_generator_for(value.isNone() ? std::nullopt : std::optional(value.toGenerator()),
                                               scope.device());
        break;
    }
  }
}

void Call::settle(HostScope& scope) const {
  for (const at::Tensor& tensor : written_) scope.settle(tensor);
}

at::Tensor Call::adopt_tensor(HostScope& scope, const at::Tensor& result) const {
  if (!result.defined() || !result.device().is_cpu() || results_stay_) return result;
  for (const at::Tensor& argument : cpu_arguments_) {
    if (argument.is_same(result)) return result;
  }
  return scope.adopt(result);
}

IValue Call::adopt(HostScope& scope, IValue&& result) const {
  if (result.isTensor()) return adopt_tensor(scope, result.toTensor());
  if (result.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : result.toTensorVector()) list.push_back(adopt_tensor(scope, tensor));
    return list;
  }
  return std::move(result);
}

// Nested calls inside a CPU kernel see CPU tensors: nothing above the backend may act on them a second time.
constexpr c10::DispatchKeySet kAboveBackend =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  OperatorPlan& plan = plan_for(op);
  apply_policy(plan);
  Call call(plan, stack->data() + stack->size() - plan.arguments.size());
  const c10::DeviceIndex device = call.find_device();
  HostScope scope(device);
  call.open(scope);
  {
    const LentGenerator lent(plan.hidden_generator, device);
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.settle(scope);
  for (size_t i = stack->size() - plan.returns; i < stack->size(); ++i) {
    (*stack)[i] = call.adopt(scope, std::move((*stack)[i]));
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

// Operators with a composite kernel that would win over the fallback although CPU tensors have a kernel of their own:
// the convolutions take a path for unknown devices, the others round differently.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"convolution", "_convolution", "convolution_backward", "_convolution_double_backward", "_stack", "_stack.out",
        "addr", "addr.out", "all.dims", "all.dims_out", "any.dims", "any.dims_out", "linalg__powsum", "mish_backward",
        "native_channel_shuffle", "native_group_norm", "native_layer_norm", "silu_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

}  // namespace
}  // namespace nxl::ops
