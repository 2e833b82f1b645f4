// SPDX-License-Identifier: Apache-2.0
// Eager collectives on neuron tensors: c10d's operators run on CPU copies, through the backend that the group has for
// the CPU (gloo), and the results come back when the work is waited for.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace nxl::ops {
namespace {

using c10::DeviceType;
using c10::IValue;
using Stack = torch::jit::Stack;

bool is_neuron(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == DeviceType::PrivateUse1;
}

struct Twin {
  at::Tensor neuron;
  at::Tensor host;
};

// The group's work, and what has to be copied to the device after it.
class HostWork final : public c10d::Work {
 public:
  HostWork(c10::intrusive_ptr<c10d::Work> inner, std::vector<Twin> written)
      : c10d::Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), written_(std::move(written)) {
    for (const Twin& twin : written_) results_.push_back(twin.neuron);
  }

  bool isCompleted() override {
    if (!inner_->isCompleted()) return false;
    if (inner_->isSuccess()) settle();
    return true;
  }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  void abort() override { inner_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = inner_->wait(timeout);
    if (done) settle();
    return done;
  }
  // Already complete when it is given out: results are on the device only after they were copied there.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait(kNoTimeout);
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(IValue(results_));
    return future;
  }

 private:
  void settle() {
    const std::lock_guard lock(settling_);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;  // parameters are written too
    for (Twin& twin : std::exchange(written_, {})) twin.neuron.copy_(twin.host);
  }

  const c10::intrusive_ptr<c10d::Work> inner_;
  std::mutex settling_;
  std::vector<Twin> written_;
  std::vector<at::Tensor> results_;
};

// c10d's schemas do not say what is written; its names do.
enum class Role { kRead, kWritten, kUpdated };
Role role_of(std::string_view op, std::string_view argument) {
  if (argument.substr(0, 6) == "output") return Role::kWritten;
  if (argument == "tensors" && op != "c10d::send") return Role::kUpdated;
  return Role::kRead;
}

class Twins {
 public:
  at::Tensor of(const at::Tensor& neuron, Role role) {
    if (!is_neuron(neuron)) return neuron;
    at::Tensor host =
        role == Role::kWritten
            ? at::empty(neuron.sizes(), neuron.options().device(DeviceType::CPU))
            : neuron.to(neuron.options().device(DeviceType::CPU), /*non_blocking=*/false, /*copy=*/true).contiguous();
    if (role != Role::kRead) written_.push_back({neuron, host});
    return host;
  }

  // A value with the twins of its tensors, at any depth of lists.
  IValue of(const IValue& value, Role role) {
    if (value.isTensor()) return of(value.toTensor(), role);
    if (value.isTensorList()) {
      c10::List<at::Tensor> twins;
      for (const at::Tensor& tensor : value.toTensorVector()) twins.push_back(of(tensor, role));
      return twins;
    }
    if (!value.isList()) return value;
    const c10::List<IValue> items = value.toList();
    c10::impl::GenericList twins(items.elementType());
    for (const IValue& item : items) twins.push_back(of(item, role));
    return twins;
  }

  std::vector<Twin> take_written() { return std::exchange(written_, {}); }

 private:
  std::vector<Twin> written_;
};

bool holds_tensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::ListType) return holds_tensors(type->castRaw<c10::ListType>()->getElementType());
  return type->kind() == c10::TypeKind::TensorType;
}

// Any operator of c10d: on the host, with the same arguments but for the tensors.
void run_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const size_t first = stack->size() - count;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Twins twins;
  IValue originals;  // what an operator that returns tensors returns: the ones that it was given to write
  for (size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!holds_tensors(argument.real_type())) continue;
    const Role role = role_of(schema.name(), argument.name());
    IValue& value = (*stack)[first + i];
    if (role != Role::kRead && originals.isNone()) originals = value;
    value = twins.of(value, role);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const size_t returns = schema.returns().size();
  for (size_t i = stack->size() - returns; i < stack->size(); ++i) {
    const c10::TypePtr& type = schema.returns()[i - (stack->size() - returns)].real_type();
    IValue& value = (*stack)[i];
    if (holds_tensors(type)) {
      value = originals;
    } else if (!value.isNone()) {
      c10::intrusive_ptr<c10d::Work> work =
          c10::make_intrusive<HostWork>(value.toCustomClass<c10d::Work>(), twins.take_written());
      value = IValue(std::move(work));
    }
  }
}

// torch registers kernels of its own for this key, which look for a backend that a group made with "gloo" does not have
// for the device; replacing them is said as a warning, which is meant for accidents.
class Silence final : public c10::WarningHandler {
 public:
  Silence() : before_(c10::WarningUtils::get_warning_handler()) { c10::WarningUtils::set_warning_handler(this); }
  ~Silence() override { c10::WarningUtils::set_warning_handler(before_); }
  void process(const c10::Warning&) override {}

 private:
  c10::WarningHandler* const before_;
};

constexpr const char* kOperators[] = {"allgather_",
                                      "_allgather_base_",
                                      "allgather_coalesced_",
                                      "allgather_into_tensor_coalesced_",
                                      "allreduce_",
                                      "allreduce_coalesced_",
                                      "alltoall_",
                                      "alltoall_base_",
                                      "barrier",
                                      "broadcast_",
                                      "gather_",
                                      "recv_",
                                      "recv_any_source_",
                                      "reduce_",
                                      "reduce_scatter_",
                                      "_reduce_scatter_base_",
                                      "reduce_scatter_tensor_coalesced_",
                                      "scatter_",
                                      "send"};

const torch::Library& registered() {
  static const auto* library = [] {
    const Silence silence;
    auto* made = new torch::Library(torch::Library::IMPL, "c10d", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    for (const char* name : kOperators) made->impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    return made;
  }();
  return *library;
}
[[maybe_unused]] const torch::Library& at_load = registered();

}  // namespace
}  // namespace nxl::ops
