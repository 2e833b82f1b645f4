// SPDX-License-Identifier: Apache-2.0
// The thread policy: how many CPU threads a core's kernels may use, and whether waiting may spin.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace nxl::host {

// The CPUs that this process may run on: its affinity mask, cut by a cgroup CPU quota.
int usable_cpus();

// Every core in use (one with a model loaded) owns usable_cpus() / (cores in use), at least one thread. With host-wide
// claims the cores of other processes count too, looked up at most once a second.
class CpuShare {
 public:
  // fixed_threads: NEURON_LIBTORCH_HOST_THREADS_PER_CORE, 0 when unset. claimed_by_others may be empty.
  CpuShare(int cpus, int fixed_threads, std::function<int()> claimed_by_others);

  void core_taken_up() { in_use_.fetch_add(1, std::memory_order_relaxed); }
  void core_given_up() { in_use_.fetch_sub(1, std::memory_order_relaxed); }

  int threads();
  // False when the cores in use fill the CPUs: a spin would then take the time of the work that it waits for.
  bool may_spin() const { return cpus_ > cores_in_use(); }

 private:
  int cores_in_use() const;

  const int cpus_;
  const int fixed_threads_;
  const std::function<int()> claimed_by_others_;
  std::atomic<int> in_use_{0};
  std::atomic<int> others_{0};
  std::atomic<int64_t> next_look_ns_{0};
};

}  // namespace nxl::host
