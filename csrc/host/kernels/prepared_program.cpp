// SPDX-License-Identifier: Apache-2.0
// One storage per buffer, one tensor per value, one closure per step; a run rebinds the storages and calls the
// closures.
#include "host/kernels/prepared_program.h"

#include <ATen/Parallel.h>
#include <ATen/TensorUtils.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <nrt_abi.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <unordered_map>

#include "core/checked.h"
#include "host/collectives/collective.h"
#include "host/kernels/collectives.h"
#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"

namespace nxl::host {

namespace {

const std::unordered_map<std::string_view, Prepare>& registry() {
  static const auto* table = [] {
    auto* made = new std::unordered_map<std::string_view, Prepare>();
    for (auto family : {copy_kernels(), unary_kernels(), binary_kernels(), compare_select_kernels(), complex_kernels(),
                        matmul_kernels(), attention_kernels(), convolution_kernels(), reduce_kernels(),
                        window_kernels(), gather_scatter_kernels(), slice_kernels(), sort_kernels(),
                        cumulative_kernels(), fft_kernels(), fused_kernels(), random_kernels()}) {
      for (const KernelEntry& entry : family) made->emplace(entry.name, entry.prepare);
    }
    return made;
  }();
  return *table;
}

// c10::Error's own text ends in a stack trace, which is no part of a message.
const char* reason_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

c10::DataPtr borrowed(void* address) { return c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)); }

c10::Storage storage_over(void* address, uint64_t bytes) {
  // Not resizable: ATen can never reallocate what it does not own.
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                            static_cast<size_t>(bytes), borrowed(address),
                                                            /*allocator=*/nullptr, /*resizable=*/false));
}

at::Tensor window(const c10::Storage& storage, const Value& value, size_t number) {
  // The parser promises this; it is the line between a wrong program and a wild write, so it is drawn twice.
  int64_t last = value.offset;
  bool fits = value.offset >= 0 && value.shape.size() == value.strides.size();
  bool empty = false;
  for (size_t d = 0; fits && d < value.shape.size(); ++d) {
    fits = value.shape[d] >= 0 && value.strides[d] >= 0;
    empty |= value.shape[d] == 0;
    int64_t span = 0;
    if (fits && value.shape[d] > 0) {
      fits = !__builtin_mul_overflow(value.shape[d] - 1, value.strides[d], &span) &&
             !__builtin_add_overflow(last, span, &last);
    }
  }
  const int64_t capacity = static_cast<int64_t>(storage.nbytes() / dtype_size(value.dtype));
  NXL_CHECK(fits && (empty ? value.offset <= capacity : last < capacity), kInvalid, "value ", number,
            " reaches outside its buffer of ", storage.nbytes(), " bytes");
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                               c10::scalarTypeToTypeMeta(scalar_type(value.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(value.shape, value.strides, value.offset);
  return tensor;
}

// The thread count of OpenMP is the calling thread's own. ATen initialises its view of it once per thread, so that
// comes first or it would undo ours.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads) : before_(at::get_num_threads()) { omp_set_num_threads(std::max(threads, 1)); }
  ~ThreadLimit() { omp_set_num_threads(before_); }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

// Programs are prepared, and small ones run, on their caller's thread: its autocast, dispatch modes, tracing and hooks
// are not the program's business. The state of a thread that has none of these is taken once.
class FreshThreadState {
 public:
  FreshThreadState() : guard_(fresh()) {}

 private:
  static const at::ThreadLocalState& fresh() {
    static const at::ThreadLocalState state = [] {
      std::optional<at::ThreadLocalState> taken;
      std::thread([&] { taken.emplace(); }).join();
      return *taken;
    }();
    return state;
  }
  at::ThreadLocalStateGuard guard_;
};

struct Binding {
  uint32_t position;  // in the signature
  uint64_t bytes;
  c10::StorageImpl* storage;
};

void rebind(const std::vector<Binding>& bindings, std::span<void* const> addresses) {
  for (const Binding& binding : bindings) {
    void* address = addresses[binding.position];
    auto& current = binding.storage->_mutable_data_ptr_no_checks();
    if (current.get() != address) current = borrowed(address);
  }
}

class BoundProgram final : public PreparedProgram {
 public:
  BoundProgram(const Program& program, std::span<std::byte> arena, const std::shared_ptr<World>& world)
      : program_(program) {
    const FreshThreadState fresh;
    c10::InferenceMode inference;
    bind(arena);
    kernels_.reserve(program.steps.size());
    for (size_t number = 0; number < program.steps.size(); ++number) {
      StepContext context(program, values_, number);
      if (is_collective(context.op())) {
        kernels_.push_back(prepare_collective(context, std::make_shared<Collective>(program, number, world)));
        continue;
      }
      const auto found = registry().find(program.steps[number].op);
      if (found == registry().end())
        context.unsupported("this runtime has no such op; rebuild the NEFF or update the runtime");
      try {
        kernels_.push_back(found->second(context));
      } catch (const Error&) {
        throw;
      } catch (const std::exception& error) {
        context.fail(ErrorKind::kInvalid, reason_of(error));
      }
    }
  }

  Status run(std::span<void* const> inputs, std::span<void* const> outputs, int threads) override {
    if (inputs.size() != program_.inputs.size() || outputs.size() != program_.outputs.size()) {
      return {NRT_INVALID,
              nxl::detail::concat("the program takes ", program_.inputs.size(), " inputs and ", program_.outputs.size(),
                                  " outputs; the call has ", inputs.size(), " and ", outputs.size())};
    }
    const FreshThreadState fresh;
    c10::InferenceMode inference;
    ThreadLimit limit(threads);
    rebind(inputs_, inputs);
    rebind(outputs_, outputs);
    size_t number = 0;
    try {
      for (const size_t count = kernels_.size(); number < count; ++number) kernels_[number]();
    } catch (const Error& error) {
      return failure(number, error.what(), error.nrt_status());
    } catch (const std::exception& error) {
      return failure(number, reason_of(error));
    } catch (...) {
      return failure(number, "an exception of unknown type");
    }
    return Status::ok();
  }

 private:
  Status failure(size_t number, const char* reason, int code = 0) const {
    return {code != 0 ? code : NRT_EXEC_COMPLETED_WITH_ERR,
            nxl::detail::concat("step ", number, " (", program_.steps[number].op, ") failed: ", reason)};
  }

  void bind(std::span<std::byte> arena) {
    NXL_CHECK(arena.size() >= program_.arena_bytes, kInvalid, "the program needs an arena of ", program_.arena_bytes,
              " bytes; it was given ", arena.size());
    std::vector<c10::Storage> storages;
    storages.reserve(program_.buffers.size());
    for (size_t number = 0; number < program_.buffers.size(); ++number) {
      storages.push_back(bind_buffer(program_.buffers[number], number, arena));
    }
    values_.reserve(program_.values.size());
    for (size_t number = 0; number < program_.values.size(); ++number) {
      const Value& value = program_.values[number];
      NXL_CHECK(value.buffer < storages.size(), kInvalid, "value ", number, " names buffer ", value.buffer, " of ",
                storages.size());
      values_.push_back(window(storages[value.buffer], value, number));
    }
  }

  c10::Storage bind_buffer(const Buffer& buffer, size_t number, std::span<std::byte> arena) {
    switch (buffer.kind) {
      case Buffer::Kind::kInput:
        return bind_argument(buffer, number, program_.inputs, inputs_);
      case Buffer::Kind::kOutput:
        return bind_argument(buffer, number, program_.outputs, outputs_);
      case Buffer::Kind::kConstant:
        NXL_CHECK(range_within(buffer.offset, buffer.bytes, program_.constants.size()), kInvalid, "buffer ", number,
                  " reaches outside the ", program_.constants.size(), " bytes of constants");
        return storage_over(const_cast<std::byte*>(program_.constants.data()) + buffer.offset, buffer.bytes);
      case Buffer::Kind::kArena:
        NXL_CHECK(range_within(buffer.offset, buffer.bytes, arena.size()), kInvalid, "buffer ", number,
                  " reaches outside the arena of ", arena.size(), " bytes");
        return storage_over(arena.data() + buffer.offset, buffer.bytes);
    }
    throw_error(ErrorKind::kInternal, "buffer kind out of range");
  }

  c10::Storage bind_argument(const Buffer& buffer, size_t number, const std::vector<neff::Variable>& signature,
                             std::vector<Binding>& bindings) {
    NXL_CHECK(buffer.index < signature.size(), kInvalid, "buffer ", number, " names argument ", buffer.index, " of ",
              signature.size());
    NXL_CHECK(buffer.bytes <= signature[buffer.index].bytes, kInvalid, "buffer ", number, " has ", buffer.bytes,
              " bytes; its argument has ", signature[buffer.index].bytes);
    c10::Storage storage = storage_over(nullptr, buffer.bytes);
    bindings.push_back({buffer.index, buffer.bytes, storage.unsafeGetStorageImpl()});
    arguments_.push_back(storage);
    return storage;
  }

  const Program& program_;
  std::vector<c10::Storage> arguments_;  // owns what the bindings point at, used by a value or not
  std::vector<Binding> inputs_;
  std::vector<Binding> outputs_;
  std::vector<at::Tensor> values_;
  std::vector<Kernel> kernels_;
};

}  // namespace

std::unique_ptr<PreparedProgram> PreparedProgram::prepare(const Program& program, std::span<std::byte> arena,
                                                          const std::shared_ptr<World>& world) {
  try {
    return std::make_unique<BoundProgram>(program, arena, world);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // ATen's own checks: a shape whose element count overflows, no memory
    throw_error(ErrorKind::kInvalid, nxl::detail::concat("the program does not fit the kernels: ", reason_of(error)));
  }
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const auto& [name, prepare] : registry()) names.emplace_back(name);
  for (const std::string_view name : collective_names()) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace nxl::host
