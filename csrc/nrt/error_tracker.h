// SPDX-License-Identifier: Apache-2.0
// Owner of one nrta_error_tracker_t. Move-only; a moved-from one is empty; after Runtime::close the deleter drops the
// handle.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "nrt/runtime.h"

namespace nxl::nrt {

class NXL_API ErrorTracker {
 public:
  ErrorTracker() = default;
  ErrorTracker(ErrorTracker&& other) noexcept;
  ErrorTracker& operator=(ErrorTracker&& other) noexcept;
  ~ErrorTracker();

  static ErrorTracker create(std::shared_ptr<Runtime> runtime, int core);

  nrta_error_tracker_t* get() const { return handle_; }
  // The tracker's list, valid until the next call; one thread at a time. Whether NRT empties it on reading is not
  // stated, so a caller must tell old entries from new ones by their sequence. Empty when NRT cannot give it.
  std::span<const nrta_error_t> list() const noexcept;
  // Why the work of this sequence failed; empty on a runtime that tells no more than the status.
  std::string reason(nrta_seq_t sequence) const;

 private:
  std::shared_ptr<Runtime> runtime_;
  nrta_error_tracker_t* handle_ = nullptr;
};

}  // namespace nxl::nrt
