// SPDX-License-Identifier: Apache-2.0
// One call of a compiled graph: checks tensors, binds their memory to a loaded executable, queues the execution.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "loader/executable.h"

namespace nxl::ops {

// One input or output of the executable as torch sees it. A chip NEFF may leave dtype and shape out: then only the
// size in bytes is checked.
struct TensorSpec {
  std::string name;
  std::optional<c10::ScalarType> dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  int alias_input = -1;  // outputs only: the input whose memory this output is
};

// A loaded NEFF with its signature in torch's terms. Thread safe.
class __attribute__((visibility("default"))) LoadedGraph {
 public:
  // Throws c10 exceptions for a broken NEFF, one for the other runtime, a bad device index, and out of memory.
  // `rank` of `world_size` says who this is in the NEFF's collectives, if it has any.
  LoadedGraph(std::span<const std::byte> neff, c10::DeviceIndex device, uint32_t rank, uint32_t world_size);

  loader::Executable& executable() { return *executable_; }
  c10::DeviceIndex device() const { return device_; }
  const std::vector<TensorSpec>& inputs() const { return inputs_; }
  const std::vector<TensorSpec>& outputs() const { return outputs_; }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  // Waits for the executions in flight, then unloads. Idempotent.
  void close();

 private:
  std::shared_ptr<loader::Executable> executable_;
  c10::DeviceIndex device_;
  std::vector<TensorSpec> inputs_;
  std::vector<TensorSpec> outputs_;
  std::atomic<bool> closed_{false};
};

// What the caller gets at one place of the result tuple.
struct GraphResult {
  enum class Kind { kInput, kOutput, kNone };
  Kind kind;
  int64_t index;  // kInput: into the call's arguments; kOutput: into the executable's outputs
};

// Calls one LoadedGraph with arguments in the caller's order. Immutable, so safe to call from several threads.
class __attribute__((visibility("default"))) GraphCall {
 public:
  // argument_indices: for each input of the executable (without the seed) the position of its tensor among the
  // arguments. has_rng_seed: the last input takes {seed, offset} as i64[2] from the device's generator. Throws
  // c10::ValueError when the numbers do not fit the executable.
  GraphCall(std::shared_ptr<LoadedGraph> graph, std::vector<int64_t> argument_indices, std::vector<GraphResult> results,
            bool has_rng_seed);

  const LoadedGraph& graph() const { return *graph_; }
  const std::vector<int64_t>& argument_indices() const { return argument_indices_; }
  // An output that is an input's memory is turned into kInput: the caller gets the very tensor it passed.
  const std::vector<GraphResult>& results() const { return results_; }
  int64_t least_arguments() const { return least_arguments_; }

  // Queues one execution and returns before it is done. `arguments` are the caller's tensors; those that the plan does
  // not use may be null. Returns the executable's outputs; an aliased one is undefined. Errors name the position, the
  // input's name, what was expected and what came. Takes no GIL and may block while the core's queue is full.
  std::vector<at::Tensor> run(std::span<const at::Tensor* const> arguments) const;

 private:
  void check_input(size_t input, const at::Tensor& tensor) const;
  [[noreturn, gnu::cold]] void refuse_input(size_t input, const at::Tensor* tensor) const;
  at::Tensor make_seed() const;

  std::shared_ptr<LoadedGraph> graph_;
  std::vector<int64_t> argument_indices_;
  std::vector<GraphResult> results_;
  bool has_rng_seed_;
  int64_t least_arguments_ = 0;
  std::vector<bool> input_is_written_;  // per executable input: some output aliases it
};

}  // namespace nxl::ops
