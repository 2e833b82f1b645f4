// SPDX-License-Identifier: Apache-2.0
// Loading a NEFF and running it with tensor sets that are kept between runs.
#include "loader/executable.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "core/log.h"
#include "loader/bindings.h"
#include "loader/execution_timeout.h"
#include "loader/ordered_queue.h"
#include "loader/signature.h"
#include "nrt/model.h"
#include "nrt/tensor_set.h"

namespace nxl::loader {
namespace {

// As many sets as NRT queues executions, and one for the run that finds the queue full.
size_t kept_sets() {
  constexpr size_t kDefaultDepth = 8;
  constexpr size_t kMostDepth = 1024;
  const char* text = std::getenv("NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS");
  size_t depth = kDefaultDepth;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), depth);  // NRT itself refuses a bad value
  return std::clamp<size_t>(depth, 1, kMostDepth) + 1;
}

// One pair of tensor sets. Reserved by a run until it is submitted, then busy until its ticket is complete.
struct Slot {
  nrt::TensorSet inputs;
  nrt::TensorSet outputs;
  std::vector<nrt_tensor_t*> bound;  // inputs, then outputs; null: nothing named yet
  uint64_t ticket = 0;
  bool reserved = false;
};

class LoadedExecutable final : public Executable, public SetHolder {
 public:
  LoadedExecutable(std::shared_ptr<nrt::Runtime> runtime, OrderedQueue& queue, int core, std::string name,
                   nrt::Model model, Signature signature)
      : runtime_(std::move(runtime)),
        queue_(queue),
        core_(core),
        name_(std::move(name)),
        label_(std::make_shared<const std::string>("the execution of '" + name_ + "'")),
        signature_(std::move(signature)),
        most_slots_(kept_sets()),
        model_(std::move(model)) {
    Bindings::get().add(this);
  }

  ~LoadedExecutable() {
    try {
      close();
    } catch (const std::exception& error) {
      NXL_LOG(kError, "unloading '", name_, "': ", error.what());
    }
    if (!nrt::in_forked_child()) Bindings::get().remove(this);
  }

  int core() const override { return core_; }
  int holder_core() const override { return core_; }
  const std::vector<neff::Variable>& inputs() const override { return signature_.inputs; }
  const std::vector<neff::Variable>& outputs() const override { return signature_.outputs; }

  Status run(std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs, uint64_t* ticket) override;
  void close() override;
  uint64_t forget(nrt_tensor_t* tensor) override;

 private:
  Status check_arguments(std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs) const;
  Status reserve(std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs, Slot** slot);
  // Ends a reservation; the slot is busy until `ticket`, which is 0 when nothing was queued.
  struct Reservation {
    LoadedExecutable& owner;
    Slot& slot;
    const uint64_t& ticket;
    Reservation(LoadedExecutable& owner, Slot& slot, const uint64_t& ticket)
        : owner(owner), slot(slot), ticket(ticket) {}
    ~Reservation() {
      const std::lock_guard lock(owner.mutex_);
      if (ticket != 0) slot.ticket = ticket;
      slot.reserved = false;
      if (--owner.active_runs_ == 0 && owner.closed_) owner.runs_done_.notify_all();
    }
  };
  Slot* find_free(std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs, uint64_t* oldest);
  Status bind(Slot& slot, std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs);
  Status bind_one(nrt::TensorSet& set, nrt_tensor_t*& bound, nrt_tensor_t* tensor, const neff::Variable& variable);
  void drop_sets(Slot& slot);
  Status closed_status() const { return {NRT_CLOSED, "the executable '" + name_ + "' was closed"}; }

  const std::shared_ptr<nrt::Runtime> runtime_;
  OrderedQueue& queue_;
  const int core_;
  const std::string name_;
  const std::shared_ptr<const std::string> label_;
  const Signature signature_;
  const size_t most_slots_;

  std::mutex mutex_;  // guards everything below; never held while waiting
  std::condition_variable runs_done_;
  nrt::Model model_;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t active_runs_ = 0;
  bool closed_ = false;
};

Status LoadedExecutable::check_arguments(std::span<nrt_tensor_t* const> inputs,
                                         std::span<nrt_tensor_t* const> outputs) const {
  const auto count = [&](const char* kind, size_t given, size_t wanted) {
    return Status{NRT_INVALID,
                  detail::concat("the executable '", name_, "' has ", wanted, " ", kind, "s, ", given, " were given")};
  };
  if (inputs.size() != signature_.inputs.size()) return count("input", inputs.size(), signature_.inputs.size());
  if (outputs.size() != signature_.outputs.size()) return count("output", outputs.size(), signature_.outputs.size());
  for (const size_t i : signature_.aliased_outputs) {
    const neff::Variable& output = signature_.outputs[i];
    const auto input = static_cast<size_t>(output.alias_input);
    if (outputs[i] == inputs[input]) continue;
    return {NRT_INVALID,
            detail::concat("the executable '", name_, "': output '", output.name, "' is the memory of input '",
                           signature_.inputs[input].name, "', the same tensor must be given for both")};
  }
  return Status::ok();
}

Status LoadedExecutable::bind_one(nrt::TensorSet& set, nrt_tensor_t*& bound, nrt_tensor_t* tensor,
                                  const neff::Variable& variable) {
  const auto refuse = [&](int code, const std::string& why) {
    return Status{code, detail::concat("the executable '", name_, "': '", variable.name, "' ", why)};
  };
  if (tensor == nullptr) return refuse(NRT_INVALID, "was given no tensor");
  const size_t size = runtime_->api().nrt_tensor_get_size(tensor);
  if (size != variable.bytes) {
    return refuse(NRT_INVALID,
                  detail::concat("needs a tensor of ", variable.bytes, " bytes, one of ", size, " was given"));
  }
  // Counted before it is named: a free in another thread may see it too early, never too late.
  Bindings::get().bound(tensor);
  const int code = set.add(variable.name.c_str(), tensor);
  if (code != NRT_SUCCESS) {
    Bindings::get().unbound(tensor);
    return refuse(code, detail::concat("was refused with ", runtime_->status_name(code), " (", code, ")"));
  }
  if (bound != nullptr) Bindings::get().unbound(bound);
  bound = tensor;
  return Status::ok();
}

Status LoadedExecutable::bind(Slot& slot, std::span<nrt_tensor_t* const> inputs,
                              std::span<nrt_tensor_t* const> outputs) {
  if (!slot.inputs) {
    slot.inputs = nrt::TensorSet::allocate(runtime_);
    slot.outputs = nrt::TensorSet::allocate(runtime_);
    slot.bound.assign(inputs.size() + outputs.size(), nullptr);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (slot.bound[i] == inputs[i] && inputs[i] != nullptr) continue;
    Status status = bind_one(slot.inputs, slot.bound[i], inputs[i], signature_.inputs[i]);
    if (!status.is_ok()) return status;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    nrt_tensor_t*& bound = slot.bound[inputs.size() + i];
    if (bound == outputs[i] && outputs[i] != nullptr) continue;
    Status status = bind_one(slot.outputs, bound, outputs[i], signature_.outputs[i]);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

void LoadedExecutable::drop_sets(Slot& slot) {
  slot.inputs = nrt::TensorSet();
  slot.outputs = nrt::TensorSet();
  for (nrt_tensor_t* tensor : slot.bound) {
    if (tensor != nullptr) Bindings::get().unbound(tensor);
  }
  slot.bound.clear();
}

// A slot that no run uses: one that names exactly these tensors if there is one, else any. `oldest` is the ticket that
// the first busy one waits for, 0 when there is none. The mutex is held.
Slot* LoadedExecutable::find_free(std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs,
                                  uint64_t* oldest) {
  const uint64_t completed = queue_.completed();
  Slot* any = nullptr;
  *oldest = 0;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->reserved) continue;
    if (slot->ticket > completed) {
      if (*oldest == 0 || slot->ticket < *oldest) *oldest = slot->ticket;
      continue;
    }
    const auto split = slot->bound.begin() + static_cast<std::ptrdiff_t>(std::min(inputs.size(), slot->bound.size()));
    if (std::equal(slot->bound.begin(), split, inputs.begin(), inputs.end()) &&
        std::equal(split, slot->bound.end(), outputs.begin(), outputs.end())) {
      return slot.get();
    }
    if (any == nullptr) any = slot.get();
  }
  return any;
}

// Reserves a slot with the tensors bound. Waits while every kept slot is in flight.
Status LoadedExecutable::reserve(std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs,
                                 Slot** reserved) {
  for (bool asked_nrt = false;;) {
    uint64_t oldest = 0;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return closed_status();
      Slot* slot = find_free(inputs, outputs, &oldest);
      if (slot == nullptr && (oldest == 0 || (asked_nrt && slots_.size() < most_slots_))) {
        slots_.push_back(std::make_unique<Slot>());
        slot = slots_.back().get();
      }
      if (slot != nullptr) {
        const Status status = bind(*slot, inputs, outputs);
        if (!status.is_ok()) return status;
        slot->reserved = true;
        ++active_runs_;
        *reserved = slot;
        return status;
      }
    }
    // Not under the mutex: noticing a completion may release tensors, which come back here through forget().
    if (!asked_nrt) {
      queue_.is_complete(oldest);
      asked_nrt = true;
      continue;
    }
    const Status status = queue_.wait(oldest, execution_timeout());
    if (!status.is_ok()) return status;
  }
}

Status LoadedExecutable::run(std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs,
                             uint64_t* ticket) try {
  *ticket = 0;
  if (!runtime_->is_open()) {
    return {NRT_CLOSED, detail::concat("the executable '", name_, "' was run after the Neuron runtime was closed")};
  }
  Status status = check_arguments(inputs, outputs);
  if (!status.is_ok()) return status;
  Slot* slot = nullptr;
  status = reserve(inputs, outputs, &slot);
  if (!status.is_ok()) return status;
  const Reservation reservation(*this, *slot, *ticket);
  status = queue_.submit(
      {NRTA_XU_COMPUTE, label_, nullptr},
      [&](nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
        return runtime_->api().nrta_execute_schedule(model_.get(), slot->inputs.get(), slot->outputs.get(),
                                                     0 /* queue */, tracker, sequence);
      },
      ticket);
  if (!status.is_ok() && status.message.empty()) {
    status.message = detail::concat("neuron:", core_, ": ", *label_, " was refused with ",
                                    runtime_->status_name(status.code), " (", status.code, ")");
  }
  return status;
} catch (const Error& error) {
  // Data path: what the slow paths throw (no memory for a set, a bad time-out in the environment) is a status too.
  return {error.nrt_status() != 0 ? error.nrt_status() : NRT_FAILURE, error.what()};
}

uint64_t LoadedExecutable::forget(nrt_tensor_t* tensor) {
  const std::lock_guard lock(mutex_);
  uint64_t busy = 0;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->reserved || std::find(slot->bound.begin(), slot->bound.end(), tensor) == slot->bound.end()) continue;
    if (slot->ticket <= queue_.completed()) {
      drop_sets(*slot);
    } else {
      busy = std::max(busy, slot->ticket);
    }
  }
  return busy;
}

void LoadedExecutable::close() {
  if (!runtime_->is_open()) return;  // the handles drop themselves; in a forked child the mutex may be held
  const auto deadline = std::chrono::steady_clock::now() + execution_timeout();
  uint64_t last = 0;
  bool quiet = true;
  {
    std::unique_lock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    quiet = runs_done_.wait_until(lock, deadline, [&] { return active_runs_ == 0; });
    for (const std::unique_ptr<Slot>& slot : slots_) last = std::max(last, slot->ticket);
  }
  const Status status = queue_.wait(last, execution_timeout());
  const std::lock_guard lock(mutex_);
  if (!quiet || (!status.is_ok() && runtime_->is_open())) {
    // Unloading under a running execution would take its memory away: the model stays loaded until the process ends.
    NXL_LOG(kError, "'", name_, "' is not unloaded: ", status.is_ok() ? "a run is still being queued" : status.message);
    for (std::unique_ptr<Slot>& slot : slots_) static_cast<void>(slot.release());
    static_cast<void>(new nrt::Model(std::move(model_)));
    return;
  }
  for (const std::unique_ptr<Slot>& slot : slots_) drop_sets(*slot);
  slots_.clear();
  model_.unload();
}

void check_target(const neff::Neff& neff, const nrt::Runtime& runtime) {
  const bool host = neff.target() == "host";
  if (host == runtime.is_host()) return;
  const std::string& name = neff.header().name;
  if (host) {
    throw_error(ErrorKind::kInvalid,
                detail::concat(
                    "the NEFF '", name, "' was built for the target 'host' and this process uses the Neuron runtime (",
                    runtime.choice().reason, "); compile it for the chip, or set NEURON_LIBTORCH_RUNTIME=host"));
  }
  throw_error(ErrorKind::kInvalid,
              detail::concat("the NEFF '", name, "' was built for the chip (target '", neff.target(),
                             "') and this process uses the host runtime (", runtime.choice().reason,
                             "); compile it for the target 'host', or run it where a Neuron device is"));
}

}  // namespace

std::shared_ptr<Executable> Executable::load(std::span<const std::byte> bytes, int core, nrt::Place place) {
  std::shared_ptr<nrt::Runtime> runtime = nrt::Runtime::get();
  runtime->check_core(core);
  const neff::Neff neff = neff::Neff::open(bytes);
  check_target(neff, *runtime);
  OrderedQueue& queue = OrderedQueue::of(core);
  const std::string name = neff.header().name.empty() ? "unnamed" : neff.header().name;
  nrt::Model model = nrt::Model::load(runtime, bytes, core, name, place);
  Signature signature = Signature::of(neff, model);
  return std::make_shared<LoadedExecutable>(std::move(runtime), queue, core, name, std::move(model),
                                            std::move(signature));
}

}  // namespace nxl::loader
