// SPDX-License-Identifier: Apache-2.0
// /proc/PID/statm: pages of the process, all 0 once its first thread has let go of its memory.
#include "kv/process_life.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

namespace nxl::kv {

std::shared_ptr<const ProcessLife> ProcessLife::of(pid_t pid) {
  if (pid <= 0) return nullptr;
  UniqueFd statm(::open(("/proc/" + std::to_string(pid) + "/statm").c_str(), O_RDONLY | O_CLOEXEC));
  if (!statm) return nullptr;
  std::shared_ptr<const ProcessLife> life(new ProcessLife(pid, std::move(statm)));
  return life->ending() ? nullptr : life;
}

bool ProcessLife::ending() const {
  char text[2] = {};
  const ssize_t got = ::pread(statm_.get(), text, sizeof text, 0);
  return got < static_cast<ssize_t>(sizeof text) || (text[0] == '0' && text[1] == ' ');
}

}  // namespace nxl::kv
