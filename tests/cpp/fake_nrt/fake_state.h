// SPDX-License-Identifier: Apache-2.0
// What the NRT library for tests remembers: tensors, sets, models, queued work, and what the test asked of it.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake_nrt/fake_nrt.h"
#include "neff/reader.h"

struct nrta_error_tracker {
  std::vector<nrta_error_t> errors;
  std::vector<nrta_error_t> fetched;
};

namespace nxl::test {

struct Tensor {
  std::shared_ptr<std::vector<uint8_t>> storage;
  size_t offset = 0;
  size_t bytes = 0;
  bool device = false;
  uint8_t* data() const { return storage->data() + offset; }
};

struct Set {
  std::map<std::string, void*> tensors;
};

struct Model {
  std::vector<neff::Variable> inputs;
  std::vector<neff::Variable> outputs;
};

struct Work {
  uint64_t sequence = 0;
  Model* model = nullptr;
  std::map<std::string, void*> inputs;
  std::map<std::string, void*> outputs;
  void* tensor = nullptr;
  void* buffer = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  NRT_STATUS outcome = NRT_SUCCESS;
  nrta_error_tracker* tracker = nullptr;
  std::vector<int> watchers;
};

class Fake final : public FakeNrt {
 public:
  static Fake& get() {
    static Fake* const fake = new Fake;
    return *fake;
  }

  template <typename Call>
  auto with_lock(Call&& call) {
    const std::lock_guard lock(mutex);
    return call();
  }

  void reset() override {
    const std::lock_guard lock(mutex);
    auto_complete = true;
    depth = 8;
    init_status = NRT_SUCCESS;
    memory_limit = 1 << 20;
    device_memory_mapped = true;
    tracker_keeps = false;
    completion_fd_works = true;
    refusals = 0;
    outcome = NRT_SUCCESS;
    query_status = NRT_SUCCESS;
    add_calls = 0;
    fds = 0;
    broken.clear();
  }
  void set_auto_complete(bool on) override {
    with_lock([&] { auto_complete = on; });
  }
  void set_depth(size_t value) override {
    with_lock([&] { depth = value; });
  }
  void set_init_status(NRT_STATUS status) override {
    with_lock([&] { init_status = status; });
  }
  void set_memory_limit(size_t bytes) override {
    with_lock([&] { memory_limit = bytes; });
  }
  void set_device_memory_mapped(bool on) override {
    with_lock([&] { device_memory_mapped = on; });
  }
  void set_tracker_keeps(bool on) override {
    with_lock([&] { tracker_keeps = on; });
  }
  void set_completion_fd_works(bool on) override {
    with_lock([&] { completion_fd_works = on; });
  }
  void refuse_executions(NRT_STATUS status, int count) override {
    with_lock([&] { refusal = status, refusals = count; });
  }
  void fail_work(NRT_STATUS status) override {
    with_lock([&] { outcome = status; });
  }
  void set_completion_query_status(NRT_STATUS status) override {
    with_lock([&] { query_status = status; });
  }
  size_t complete(nrta_xu_t unit, size_t count) override {
    const std::lock_guard lock(mutex);
    size_t done = 0;
    for (; done < count && !queues[unit].empty(); ++done) finish_oldest(unit);
    return done;
  }
  size_t pending(nrta_xu_t unit) override {
    return with_lock([&] { return queues[unit].size(); });
  }
  int live_tensors() override {
    return with_lock([&] { return static_cast<int>(tensors.size()); });
  }
  int live_sets() override {
    return with_lock([&] { return static_cast<int>(sets.size()); });
  }
  int live_models() override {
    return with_lock([&] { return static_cast<int>(models.size()); });
  }
  int calls_after_close() override {
    return with_lock([&] { return late_calls; });
  }
  int times_closed() override {
    return with_lock([&] { return closes; });
  }
  int adds() override {
    return with_lock([&] { return add_calls; });
  }
  int completion_fds() override {
    return with_lock([&] { return fds; });
  }
  std::vector<std::string> violations() override {
    return with_lock([&] { return broken; });
  }

  // Under the mutex, at the start of every call that needs an open runtime.
  NRT_STATUS enter() {
    if (closes > 0) {
      ++late_calls;
      return NRT_CLOSED;
    }
    return initialised ? NRT_SUCCESS : NRT_UNINITIALIZED;
  }

  NRT_STATUS schedule(nrta_xu_t unit, Work work, nrta_seq_t* sequence) {
    if (queues[unit].size() >= depth) return NRT_QUEUE_FULL;
    work.sequence = static_cast<uint64_t>(unit) << 48 | ++scheduled[unit];
    work.outcome = outcome;
    *sequence = work.sequence;
    queues[unit].push_back(std::move(work));
    if (auto_complete) finish_oldest(unit);
    return NRT_SUCCESS;
  }

  void finish_oldest(nrta_xu_t unit) {
    Work work = std::move(queues[unit].front());
    queues[unit].pop_front();
    for (const auto* set : {&work.inputs, &work.outputs}) {
      for (const auto& [name, tensor] : *set) {
        if (!tensors.contains(tensor)) broken.push_back("ran a set that names a freed tensor: " + name);
      }
    }
    if (work.model != nullptr && !models.contains(work.model)) broken.push_back("ran an unloaded model");
    if (work.outcome == NRT_SUCCESS && broken.empty()) run(unit, work);
    if (work.outcome != NRT_SUCCESS && work.tracker != nullptr) {
      work.tracker->errors.push_back({work.sequence, static_cast<uint64_t>(work.outcome)});
    }
    ++completed[unit];
    for (const int fd : work.watchers) {
      const uint64_t one = 1;
      if (::write(fd, &one, sizeof(one)) != sizeof(one)) broken.push_back("the completion could not be signalled");
      ::close(fd);
    }
  }

  void run(nrta_xu_t unit, const Work& work) {
    if (unit == NRTA_XU_TENSOR_WRITE) {
      std::memcpy(tensors[work.tensor].data() + work.offset, work.buffer, work.bytes);
    } else if (unit == NRTA_XU_TENSOR_READ) {
      std::memcpy(work.buffer, tensors[work.tensor].data() + work.offset, work.bytes);
    } else if (!work.model->inputs.empty()) {
      const Tensor& input = tensors[work.inputs.at(work.model->inputs[0].name)];
      for (const auto& [name, handle] : work.outputs) {
        Tensor& output = tensors[handle];
        for (size_t i = 0; i < std::min(output.bytes, input.bytes); ++i) {
          output.data()[i] = static_cast<uint8_t>(input.data()[i] + 1);
        }
      }
    }
  }

  size_t used() const {
    std::map<const void*, size_t> storages;
    for (const auto& [handle, tensor] : tensors) {
      if (tensor.device) storages[tensor.storage.get()] = tensor.storage->size();
    }
    size_t sum = 0;
    for (const auto& [storage, bytes] : storages) sum += bytes;
    return sum;
  }

  std::mutex mutex;
  bool initialised = false;
  int closes = 0;
  int late_calls = 0;
  bool auto_complete = true;
  size_t depth = 8;
  NRT_STATUS init_status = NRT_SUCCESS;
  size_t memory_limit = 1 << 20;
  bool device_memory_mapped = true;
  bool tracker_keeps = false;
  bool completion_fd_works = true;
  NRT_STATUS refusal = NRT_SUCCESS;
  int refusals = 0;
  NRT_STATUS outcome = NRT_SUCCESS;
  NRT_STATUS query_status = NRT_SUCCESS;
  int add_calls = 0;
  int fds = 0;
  std::vector<std::string> broken;
  std::map<void*, Tensor> tensors;
  uintptr_t next_handle = 0x1000;  // never reused, so that a stale one is seen
  std::map<void*, std::unique_ptr<Set>> sets;
  std::map<void*, std::unique_ptr<Model>> models;
  std::deque<Work> queues[5];
  uint64_t scheduled[5] = {};
  uint64_t completed[5] = {};
};

inline Fake& fake() { return Fake::get(); }

}  // namespace nxl::test
