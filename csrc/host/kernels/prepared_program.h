// SPDX-License-Identifier: Apache-2.0
// A program bound to kernels: made once at load, run many times by the core's thread. This header has no ATen in it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "host/program.h"

namespace nxl::host {

class World;

class PreparedProgram {
 public:
  // Throws Error(kUnsupported) for an unknown op (names it and the step), Error(kInvalid) for operands that do not fit
  // the op's rules. `program` must outlive the result. `arena` has program.arena_bytes bytes, 64-byte aligned.
  // `world` is what collectives join; null for a program without them.
  static std::unique_ptr<PreparedProgram> prepare(const Program& program, std::span<std::byte> arena,
                                                  const std::shared_ptr<World>& world = nullptr);

  virtual ~PreparedProgram() = default;

  // Runs every step on the calling thread with at most `threads` CPU threads. Addresses are in signature order; an
  // aliased output has its input's address. A kernel that throws becomes EXEC_COMPLETED_WITH_ERR with step and op in
  // the message. Not reentrant: one run at a time for one PreparedProgram.
  virtual Status run(std::span<void* const> inputs, std::span<void* const> outputs, int threads) = 0;
};

// Every op name that prepare() accepts, sorted: `neuron-lite info --ops` and the tests of hostcc read it.
std::vector<std::string> kernel_names();

}  // namespace nxl::host
