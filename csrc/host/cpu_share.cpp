// SPDX-License-Identifier: Apache-2.0
// CPUs divided by cores in use.
#include "host/cpu_share.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>

namespace nxl::host {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
constexpr int64_t kLookIntervalNs = 1'000'000'000;

}  // namespace

int usable_cpus() {
  int cpus = 1;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) cpus = CPU_COUNT(&mask);
  double quota = 0;
  double period = 0;
  // "max 100000" when there is no quota: then the first number does not read.
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && quota > 0 && period > 0) {
    cpus = std::min(cpus, static_cast<int>((quota + period - 1) / period));
  }
  return std::max(cpus, 1);
}

CpuShare::CpuShare(int cpus, int fixed_threads, std::function<int()> claimed_by_others)
    : cpus_(cpus), fixed_threads_(fixed_threads), claimed_by_others_(std::move(claimed_by_others)) {}

int CpuShare::cores_in_use() const {
  return in_use_.load(std::memory_order_relaxed) + others_.load(std::memory_order_relaxed);
}

int CpuShare::threads() {
  if (fixed_threads_ > 0) return fixed_threads_;
  if (claimed_by_others_) {
    int64_t due = next_look_ns_.load(std::memory_order_relaxed);
    const int64_t now = now_ns();
    if (now >= due && next_look_ns_.compare_exchange_strong(due, now + kLookIntervalNs, std::memory_order_relaxed)) {
      others_.store(claimed_by_others_(), std::memory_order_relaxed);
    }
  }
  return std::max(1, cpus_ / std::max(1, cores_in_use()));
}

}  // namespace nxl::host
