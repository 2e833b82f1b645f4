// SPDX-License-Identifier: Apache-2.0
// nrt_init, nrt_close, process exit and fork.
#include "host/runtime.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "host/collectives/world.h"
#include "host/environment.h"
#include "host/log.h"
#include "host/refusal.h"
#include "host/sendrecv.h"

namespace nxl::host {
namespace {

enum class State : int { kUninitialized, kOpening, kOpen, kClosed, kLostInFork };
std::atomic<State> current{State::kUninitialized};

constexpr auto kClosePatience = std::chrono::seconds(10);
constexpr int64_t kMaxThreadsPerCore = 1024;
constexpr int64_t kMaxQueueDepth = 1 << 20;

std::atomic<CoreClaims*> claims_to_drop_in_child{nullptr};

void in_child_of_fork() {
  if (current.load() == State::kUninitialized) return;  // the child may open the runtime for itself
  current.store(State::kLostInFork);
  if (CoreClaims* claims = claims_to_drop_in_child.load()) claims->close_descriptors();
  close_in_forked_child();
  close_sockets_in_child();
}

}  // namespace

Runtime& Runtime::instance() {
  static Runtime* runtime = new Runtime;
  return *runtime;
}

NRT_STATUS Runtime::state() noexcept {
  switch (current.load(std::memory_order_acquire)) {
    case State::kOpen:
      return NRT_SUCCESS;
    case State::kUninitialized:
    case State::kOpening:
      return NRT_UNINITIALIZED;
    case State::kClosed:
    case State::kLostInFork:
      break;
  }
  return NRT_CLOSED;
}

bool Runtime::lost_in_fork() noexcept { return current.load(std::memory_order_acquire) == State::kLostInFork; }

void Runtime::initialize() {
  State expected = State::kUninitialized;
  if (!current.compare_exchange_strong(expected, State::kOpening)) {
    refuse(NRT_INVALID, "the runtime is already initialised: nrt_init is called once per process");
  }
  static const bool handlers_installed = [] {
    pthread_atfork(nullptr, nullptr, in_child_of_fork);
    std::atexit([] { instance().close(); });
    return true;
  }();
  static_cast<void>(handlers_installed);
  try {
    open_cores();
  } catch (...) {
    claims_to_drop_in_child = nullptr;
    claims_.reset();
    cores_.clear();
    current.store(State::kUninitialized);
    throw;
  }
  current.store(State::kOpen, std::memory_order_release);
}

void Runtime::open_cores() {
  read_log_level();
  Worlds::instance().open(CollectiveOptions::from_environment());
  claims_ = CoreClaims::take(CoreSelection::from_environment());
  claims_to_drop_in_child = claims_.get();
  const std::vector<int>& ids = claims_->ids();
  const uint64_t limit = memory_limit_per_core(static_cast<int>(ids.size()));
  const auto threads = environment_integer("NEURON_LIBTORCH_HOST_THREADS_PER_CORE", 1, kMaxThreadsPerCore).value_or(0);
  Queue::Options options;
  options.compute_depth = static_cast<uint64_t>(
      environment_integer("NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS", 1, kMaxQueueDepth).value_or(8));
  const bool inline_programs = environment_integer("NEURON_LIBTORCH_HOST_INLINE", 0, 1).value_or(1) == 1;
  std::function<int()> others;
  if (claims_->host_wide()) others = [claims = claims_.get()] { return claims->claimed_by_others(); };
  const auto share = std::make_shared<CpuShare>(usable_cpus(), static_cast<int>(threads), std::move(others));
  for (const int id : ids) {
    options.core = static_cast<uint32_t>(cores_.size());
    cores_.push_back(
        std::make_shared<Core>(static_cast<int>(cores_.size()), id, limit, inline_programs, options, share));
  }
  log_parts(LogLevel::kInfo, "opened ", cores_.size(), " cores, ", limit >> 20, " MiB each, first absolute id ",
            ids[0]);
}

void Runtime::close() noexcept {
  State expected = State::kOpen;
  if (!current.compare_exchange_strong(expected, State::kClosed)) {
    // Before nrt_init there is nothing to stop, but later calls must see a closed runtime all the same.
    if (expected == State::kUninitialized) current.compare_exchange_strong(expected, State::kClosed);
    return;
  }
  SendRecv::shut_down();
  // A collective that waits for other ranks would outlast the patience with the cores.
  Worlds::instance().abort();
  const bool quiet = stop_cores(kClosePatience);
  Worlds::instance().close();
  // A core that still runs something stays claimed: its CPUs and memory are not free.
  if (quiet && claims_) claims_->close_descriptors();
}

bool Runtime::stop_cores(std::chrono::milliseconds patience) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + patience;
  bool quiet = true;
  for (const auto& core : cores_) {
    try {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      if (core->queue().stop(std::max(left, std::chrono::milliseconds(0)))) continue;
      quiet = false;
      log_parts(LogLevel::kError, "core ", core->index(), " still runs an execution after ", patience.count(),
                " ms; it is left to itself");
    } catch (...) {
      quiet = false;
    }
  }
  return quiet;
}

const std::shared_ptr<Core>& Runtime::core(int64_t index) const {
  if (index < 0 || index >= static_cast<int64_t>(cores_.size())) {
    refuse(NRT_INVALID, "core ", index, " is outside the visible cores 0 to ", cores_.size() - 1,
           " (NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES set them)");
  }
  return cores_[static_cast<size_t>(index)];
}

}  // namespace nxl::host
