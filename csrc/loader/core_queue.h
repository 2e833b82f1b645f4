// SPDX-License-Identifier: Apache-2.0
// The work queue of one core as this process sees it: tickets in submission order, waiting, and the first error.
// Every stream of a device maps onto its core's one queue, which runs in order.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "core/api.h"
#include "core/status.h"
#include "nrt/runtime.h"

namespace nxl::loader {

class NXL_API CoreQueue {
 public:
  // One per core, made on first use, alive until process exit. Thread safe throughout. Throws kInvalid for a bad core.
  static CoreQueue& of(int core);
  // Null when nothing was ever queued on this core; makes nothing.
  static CoreQueue* find(int core) noexcept;

  virtual ~CoreQueue() = default;

  // Ticket of the newest submission; 0 when nothing was submitted.
  virtual uint64_t submitted() const noexcept = 0;
  // True when nothing is in flight: one relaxed load on the fast path.
  virtual bool idle() const noexcept = 0;
  virtual bool is_complete(uint64_t ticket) noexcept = 0;
  // Waits until `ticket` and all before it are done. TIMEOUT status after `timeout`. Does not report execution errors.
  virtual Status wait(uint64_t ticket, std::chrono::milliseconds timeout) = 0;
  // wait(submitted()) with the deadline of NEURON_LIBTORCH_EXECUTION_TIMEOUT (seconds, default 600).
  virtual Status drain() = 0;
  // The first execution error since the last call, cleared by this call. A reader (copy to host, .item(),
  // synchronize) throws it.
  virtual Status take_error() = 0;
  // Queued byte copies in order with executions. `keep_alive` (may be null) is released once the copy is done, by the
  // next call on this queue that notices. Throws Error with NRT's status when the copy cannot be queued.
  virtual uint64_t write(nrt_tensor_t* tensor, const void* source, uint64_t offset, uint64_t bytes,
                         std::shared_ptr<void> keep_alive) = 0;
  virtual uint64_t read(void* target, nrt_tensor_t* tensor, uint64_t offset, uint64_t bytes,
                        std::shared_ptr<void> keep_alive) = 0;
};

}  // namespace nxl::loader
