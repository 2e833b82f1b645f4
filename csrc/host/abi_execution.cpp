// SPDX-License-Identifier: Apache-2.0
// Exported functions: executions, queued copies, sequences, completion and errors.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/edge.h"
#include "host/log.h"

using namespace nxl::host;

namespace {

std::shared_ptr<ErrorTracker> tracker_of(const nrta_error_tracker_t* tracker) {
  if (tracker == nullptr) return nullptr;  // the caller does not want to know
  return Runtime::instance().error_trackers.get(tracker, "error tracker");
}

void check_queue(int queue) {
  if (queue != 0) refuse(NRT_INVALID, "queue ", queue, " does not exist: each execution unit has queue 0");
}

std::unique_ptr<Work> execution_of(const std::shared_ptr<Model>& model, const nrt_tensor_set_t* in,
                                   const nrt_tensor_set_t* out, int count) {
  Runtime& runtime = Runtime::instance();
  const auto inputs = runtime.tensor_sets.get(in, "input set");
  const auto outputs = runtime.tensor_sets.get(out, "output set");
  return make_execution(model, *inputs, *outputs, count);
}

NRT_STATUS execute(nrt_model_t* handle, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, int count) {
  const auto model = Runtime::instance().models.get(handle, "model");
  if (count < 1) refuse(NRT_INVALID, "an execution repeated ", count, " times is none");
  Queue& queue = model->core()->queue();
  const auto outcome = std::make_shared<Outcome>();
  uint64_t number = 0;
  const NRT_STATUS status =
      queue.submit(NRTA_XU_COMPUTE, execution_of(model, in, out, count), nullptr, outcome, true, &number);
  if (status != NRT_SUCCESS) return status;
  if (!queue.wait(NRTA_XU_COMPUTE, number)) return NRT_CLOSED;
  return static_cast<NRT_STATUS>(outcome->status.code);
}

NRT_STATUS schedule(const Core& core, nrta_xu_t unit, std::unique_ptr<Work> work, nrta_error_tracker_t* tracker,
                    nrta_seq_t* seq) {
  uint64_t number = 0;
  const NRT_STATUS status = core.queue().submit(unit, std::move(work), tracker_of(tracker), nullptr, false, &number);
  if (status == NRT_SUCCESS) *seq = Sequence{unit, static_cast<uint32_t>(core.index()), number}.encode();
  return status;
}

// One queued copy; `keep` holds the tensors' storages.
class Transfer : public Work {
 public:
  Transfer(Call call, View source, View target) : call_(call), source_(std::move(source)), target_(std::move(target)) {}

  nxl::Status run(int) override {
    if (const NRT_STATUS injected = Faults::instance().inject(call_); injected != NRT_SUCCESS) {
      return {injected, std::string(call_name(call_)) + ": injected fault"};
    }
    copy_bytes(source_, target_);
    return nxl::Status::ok();
  }
  bool may_run_inline() const override { return source_.bytes <= kInlineBytes && !Faults::instance().active(); }

 private:
  static constexpr uint64_t kInlineBytes = 64 << 10;  // a copy this long costs what waking a thread does
  const Call call_;
  const View source_;
  const View target_;
};

View caller_buffer(const void* buffer, uint64_t size) {
  if (buffer == nullptr && size != 0) refuse(NRT_INVALID, "the buffer is null");
  return {nullptr, static_cast<std::byte*>(const_cast<void*>(buffer)), size};
}

// The core whose queue orders a copy: that of the device memory involved.
const Core& core_of(const View& view, const View* other = nullptr) {
  int core = view.storage->core;
  if (core < 0 && other != nullptr) core = other->storage->core;
  return *Runtime::instance().core(core < 0 ? 0 : core);
}

struct Located {
  Sequence sequence;
  Queue& queue;
};

Located locate(nrta_seq_t seq) {
  const auto sequence = Sequence::decode(seq);
  if (!sequence) refuse(NRT_INVALID, "sequence ", seq, ": no such execution unit");
  Queue& queue = Runtime::instance().core(sequence->core)->queue();
  if (sequence->number > queue.submitted(sequence->unit)) {
    refuse(NRT_INVALID, "sequence ", seq, " was never given out: unit ", static_cast<int>(sequence->unit), " of core ",
           sequence->core, " is at number ", queue.submitted(sequence->unit));
  }
  return {*sequence, queue};
}

template <typename T>
void require(const T* pointer) {
  if (pointer == nullptr) refuse(NRT_INVALID, "the result is null");
}

}  // namespace

NXL_HOST_EXPORT NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out) {
  return at_edge(Call::nrt_execute, [&] { return execute(model, in, out, 1); });
}

NXL_HOST_EXPORT NRT_STATUS nrt_execute_repeat(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out,
                                              int count) {
  return at_edge(Call::nrt_execute_repeat, [&] { return execute(model, in, out, count); });
}

NXL_HOST_EXPORT NRT_STATUS nrta_execute_schedule(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out,
                                                 int queue, nrta_error_tracker_t* tracker, nrta_seq_t* seq) {
  return at_edge(Call::nrta_execute_schedule, [&] {
    require(seq);
    check_queue(queue);
    const auto found = Runtime::instance().models.get(model, "model");
    return schedule(*found->core(), NRTA_XU_COMPUTE, execution_of(found, in, out, 1), tracker, seq);
  });
}

NXL_HOST_EXPORT NRT_STATUS nrta_is_completed(nrta_seq_t seq, bool* completed) {
  return at_edge(Call::nrta_is_completed, [&] {
    require(completed);
    const auto [sequence, queue] = locate(seq);
    *completed = queue.completed(sequence.unit) >= sequence.number;
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrta_get_sequence(uint32_t lnc, nrta_xu_t xu, int queue, nrta_seq_t* seq) {
  return at_edge(Call::nrta_get_sequence, [&] {
    require(seq);
    check_queue(queue);
    const auto& core = Runtime::instance().core(lnc);
    const int unit = raw_value(xu);
    if (unit < 0 || unit >= Queue::kUnits) refuse(NRT_INVALID, "no execution unit has the number ", unit);
    *seq = Sequence{xu, lnc, core->queue().submitted(xu)}.encode();
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrta_get_completion_handle(nrta_seq_t seq, int* fd) {
  return at_edge(Call::nrta_get_completion_handle, [&] {
    require(fd);
    const auto [sequence, queue] = locate(seq);
    const int made = queue.completion_fd(sequence.unit, sequence.number);
    if (made < 0) refuse(NRT_RESOURCE, "no file descriptor is left for a completion handle: ", std::strerror(errno));
    *fd = made;
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrta_error_tracker_create(uint32_t lnc, nrta_error_tracker_t** tracker) {
  return at_edge(Call::nrta_error_tracker_create, [&] {
    require(tracker);
    Runtime& runtime = Runtime::instance();
    runtime.core(lnc);
    *tracker = static_cast<nrta_error_tracker_t*>(runtime.error_trackers.insert(std::make_shared<ErrorTracker>()));
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT void nrta_error_tracker_destroy(nrta_error_tracker_t* tracker) {
  if (tracker == nullptr || Runtime::lost_in_fork()) return;
  if (!Runtime::instance().error_trackers.remove(tracker)) {
    log_parts(LogLevel::kWarning, "nrta_error_tracker_destroy: ", static_cast<void*>(tracker),
              " is not a live tracker");
  }
}

NXL_HOST_EXPORT NRT_STATUS nrta_error_tracker_get_list(nrta_error_tracker_t* tracker, const nrta_error_t** list,
                                                       size_t* count) {
  return at_edge(Call::nrta_error_tracker_get_list, [&] {
    require(list);
    require(count);
    const auto& errors = Runtime::instance().error_trackers.get(tracker, "error tracker")->fetch();
    *list = errors.data();
    *count = errors.size();
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_host_error_text(nrta_error_tracker_t* tracker, nrta_seq_t seq, char* text, size_t size) {
  return at_edge(Call::nrt_host_error_text, [&] {
    require(text);
    if (size == 0) refuse(NRT_INVALID, "there is no room for the text");
    const std::string found = Runtime::instance().error_trackers.get(tracker, "error tracker")->message(seq);
    const size_t length = std::min(found.size(), size - 1);
    std::memcpy(text, found.data(), length);
    text[length] = '\0';
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_drain_queued_execs(int32_t vnc) {
  return at_edge(Call::nrt_async_drain_queued_execs, [&] {
    Queue& queue = Runtime::instance().core(vnc)->queue();
    return queue.wait(NRTA_XU_COMPUTE, queue.submitted(NRTA_XU_COMPUTE)) ? NRT_SUCCESS : NRT_CLOSED;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrta_tensor_write(nrt_tensor_t* tensor, const void* buffer, uint64_t offset, uint64_t size,
                                             int queue, nrta_error_tracker_t* tracker, nrta_seq_t* seq) {
  return at_edge(Call::nrta_tensor_write, [&] {
    require(seq);
    check_queue(queue);
    View target = Runtime::instance().tensors.get(tensor, "tensor")->range(offset, size);
    const Core& core = core_of(target);
    return schedule(core, NRTA_XU_TENSOR_WRITE,
                    std::make_unique<Transfer>(Call::tensor_write, caller_buffer(buffer, size), std::move(target)),
                    tracker, seq);
  });
}

NXL_HOST_EXPORT NRT_STATUS nrta_tensor_read(void* buffer, nrt_tensor_t* tensor, uint64_t offset, uint64_t size,
                                            int queue, nrta_error_tracker_t* tracker, nrta_seq_t* seq) {
  return at_edge(Call::nrta_tensor_read, [&] {
    require(seq);
    check_queue(queue);
    View source = Runtime::instance().tensors.get(tensor, "tensor")->range(offset, size);
    const Core& core = core_of(source);
    return schedule(core, NRTA_XU_TENSOR_READ,
                    std::make_unique<Transfer>(Call::tensor_read, std::move(source), caller_buffer(buffer, size)),
                    tracker, seq);
  });
}

NXL_HOST_EXPORT NRT_STATUS nrta_tensor_copy(nrt_tensor_t* src, uint64_t src_offset, nrt_tensor_t* dst,
                                            uint64_t dst_offset, uint64_t size, int queue,
                                            nrta_error_tracker_t* tracker, nrta_seq_t* seq) {
  return at_edge(Call::nrta_tensor_copy, [&] {
    require(seq);
    check_queue(queue);
    Runtime& runtime = Runtime::instance();
    View source = runtime.tensors.get(src, "tensor")->range(src_offset, size);
    View target = runtime.tensors.get(dst, "tensor")->range(dst_offset, size);
    check_copy(source, target);
    const Core& core = core_of(target, &source);
    return schedule(core, NRTA_XU_TENSOR_OP,
                    std::make_unique<Transfer>(Call::tensor_copy, std::move(source), std::move(target)), tracker, seq);
  });
}
