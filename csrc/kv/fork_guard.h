// SPDX-License-Identifier: Apache-2.0
// Descriptors that a forked child must not keep: while it held a socket, a dead parent would look alive to its peers.
#pragma once

#include <cstdint>
#include <utility>

#include "core/api.h"

namespace nxl::kv {

// Rises by one in every forked child, so that an object can tell that it is a copy.
NXL_API uint64_t fork_generation() noexcept;

// An owned descriptor that is closed in the child of a fork; the child's copy of this object closes nothing.
class NXL_API GuardedFd {
 public:
  GuardedFd() = default;
  explicit GuardedFd(int fd);
  GuardedFd(GuardedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  GuardedFd& operator=(GuardedFd&& other) noexcept;
  ~GuardedFd() { reset(); }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  void reset() noexcept;

 private:
  int fd_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace nxl::kv
