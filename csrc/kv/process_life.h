// SPDX-License-Identifier: Apache-2.0
// Whether another process of this host has begun to die. Its sockets close only after the kernel has taken its memory
// apart, about 0.14 ms for each MiB; that it has no memory any more is seen at once.
#pragma once

#include <sys/types.h>

#include <memory>

#include "core/api.h"
#include "core/unique_handle.h"

namespace nxl::kv {

class NXL_API ProcessLife {
 public:
  // Null when nothing can be said: no pid, no /proc, or a process whose first thread has ended before the others.
  static std::shared_ptr<const ProcessLife> of(pid_t pid);

  bool ending() const;  // true from then on, also when the process is gone; never of another process with its pid
  pid_t pid() const { return pid_; }

 private:
  ProcessLife(pid_t pid, UniqueFd statm) : pid_(pid), statm_(std::move(statm)) {}
  const pid_t pid_;
  const UniqueFd statm_;
};

}  // namespace nxl::kv
