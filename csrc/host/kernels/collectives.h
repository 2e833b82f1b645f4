// SPDX-License-Identifier: Apache-2.0
// Collective steps as kernels.
#pragma once

#include <memory>

#include "host/collectives/collective.h"
#include "host/kernels/step_context.h"

namespace nxl::host {

// The step's operands may be windows with gaps; the collective works on dense memory.
Kernel prepare_collective(const StepContext& step, std::shared_ptr<Collective> collective);

}  // namespace nxl::host
