// SPDX-License-Identifier: Apache-2.0
// NEURON_LIBTORCH_EAGER_FALLBACK and the counters.
#include "ops/fallback_policy.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>

#include "ops/operator_plan.h"

namespace nxl::ops {
namespace {

constexpr const char* kVariable = "NEURON_LIBTORCH_EAGER_FALLBACK";
constexpr const char* kNames[] = {"allow", "warn", "error"};

std::atomic<int> current_mode{-1};  // -1: the variable was not read yet

int parse(const std::string& name, const char* source) {
  for (int i = 0; i < 3; ++i) {
    if (name == kNames[i]) return i;
  }
  TORCH_CHECK_VALUE(false, source, " is '", name, "'; choices: allow, warn, error");
}

}  // namespace

FallbackMode fallback_mode() {
  int mode = current_mode.load(std::memory_order_relaxed);
  if (__builtin_expect(mode < 0, 0)) {
    const char* value = std::getenv(kVariable);
    mode = value == nullptr || *value == '\0' ? static_cast<int>(FallbackMode::kWarn) : parse(value, kVariable);
    current_mode.store(mode, std::memory_order_relaxed);
  }
  return static_cast<FallbackMode>(mode);
}

const char* fallback_mode_name() { return kNames[static_cast<int>(fallback_mode())]; }

void set_fallback_mode(const std::string& name) { current_mode = parse(name, "the eager fallback mode"); }

std::map<std::string, uint64_t> fallback_counts() {
  std::map<std::string, uint64_t> counts;
  for_each_plan(
      [](OperatorPlan& plan, void* context) {
        const uint64_t calls = plan.calls.load(std::memory_order_relaxed);
        if (calls != 0) (*static_cast<std::map<std::string, uint64_t>*>(context))[plan.name] += calls;
      },
      &counts);
  return counts;
}

uint64_t fallback_total() {
  uint64_t total = 0;
  for_each_plan([](OperatorPlan& plan,
                   void* context) { *static_cast<uint64_t*>(context) += plan.calls.load(std::memory_order_relaxed); },
                &total);
  return total;
}

void reset_fallback_counts() {
  for_each_plan([](OperatorPlan& plan, void*) { plan.calls.store(0, std::memory_order_relaxed); }, nullptr);
}

}  // namespace nxl::ops
