// SPDX-License-Identifier: Apache-2.0
// pthread_atfork around one set of descriptors.
#include "kv/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

namespace nxl::kv {
namespace {

struct Guard {
  std::mutex mutex;
  std::set<int> descriptors;
  std::atomic<uint64_t> generation{0};
};

// Never destroyed: agents may be closed from destructors of other static objects.
Guard& guard() {
  static Guard& instance = *[] {
    auto* made = new Guard;
    pthread_atfork([] { guard().mutex.lock(); }, [] { guard().mutex.unlock(); },
                   [] {
                     for (const int fd : guard().descriptors) ::close(fd);
                     guard().descriptors.clear();
                     guard().generation.fetch_add(1, std::memory_order_relaxed);
                     guard().mutex.unlock();
                   });
    return made;
  }();
  return instance;
}

}  // namespace

uint64_t fork_generation() noexcept { return guard().generation.load(std::memory_order_relaxed); }

GuardedFd::GuardedFd(int fd) : fd_(fd), generation_(fork_generation()) {
  if (fd_ < 0) return;
  const std::lock_guard lock(guard().mutex);
  guard().descriptors.insert(fd_);
}

GuardedFd& GuardedFd::operator=(GuardedFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void GuardedFd::reset() noexcept {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || generation_ != fork_generation()) return;
  // Closed under the lock: a fork in between would let the child close a number that is somebody else's by then.
  const std::lock_guard lock(guard().mutex);
  guard().descriptors.erase(fd);
  ::close(fd);
}

}  // namespace nxl::kv
