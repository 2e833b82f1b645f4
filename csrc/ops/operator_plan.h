// SPDX-License-Identifier: Apache-2.0
// What the CPU fallback must know about an operator, worked out once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace nxl::ops {

enum class ArgumentKind : uint8_t { kOther, kTensor, kTensorList, kOptionalTensorList, kDevice, kGenerator };

struct ArgumentPlan {
  ArgumentKind kind = ArgumentKind::kOther;
  bool written = false;       // the schema says that the operator writes it
  bool stays_on_cpu = false;  // torch takes a CPU tensor of any size here, whatever the other arguments' device
};

struct OperatorPlan {
  std::string name;  // with overload
  c10::SmallVector<ArgumentPlan, 8> arguments;
  size_t returns = 0;
  bool writes = false;
  bool hidden_generator = false;  // draws random numbers but takes no generator: uses the CPU's default one
  std::atomic<uint64_t> calls{0};
  std::atomic<bool> warned{false};
};

// The plan of `op`: made on first use, forgotten when the operator is deregistered. The reference stays valid for ever.
OperatorPlan& plan_for(const c10::OperatorHandle& op);

// Every plan made so far, under the registry's lock.
void for_each_plan(void (*visit)(OperatorPlan& plan, void* context), void* context);

}  // namespace nxl::ops
