// SPDX-License-Identifier: Apache-2.0
// A NEFF loaded on one core: checks its target, binds tensors by name, queues executions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/api.h"
#include "core/status.h"
#include "neff/reader.h"
#include "nrt/model.h"
#include "nrt/runtime.h"

namespace nxl::loader {

class NXL_API Executable {
 public:
  // Throws kInvalid for a broken NEFF or one built for the other runtime (a sentence that says which), or with NRT's
  // status. The bytes are not needed after load returns. `place` counts where the NEFF has collectives: the ranks meet
  // at its first run.
  static std::shared_ptr<Executable> load(std::span<const std::byte> neff, int core, nrt::Place place = {});

  virtual ~Executable() = default;
  virtual int core() const = 0;
  virtual const std::vector<neff::Variable>& inputs() const = 0;
  virtual const std::vector<neff::Variable>& outputs() const = 0;

  // Queues one execution and stores its ticket on CoreQueue::of(core()). Handles are in the order of inputs() and
  // outputs(), exactly as many, each of exactly the variable's size; an aliased output is given its input's handle.
  // Blocks while the core's queue is full (back-pressure, bounded by the execution timeout), never fails for it.
  // The tensors' memory must stay mapped until the ticket completes. Thread safe. After close(): CLOSED.
  virtual Status run(std::span<nrt_tensor_t* const> inputs, std::span<nrt_tensor_t* const> outputs,
                     uint64_t* ticket) = 0;

  // Unloads after the executions in flight are done. Idempotent.
  virtual void close() = 0;
};

}  // namespace nxl::loader
