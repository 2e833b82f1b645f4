// SPDX-License-Identifier: Apache-2.0
// Matrix products where one side has at most four rows: decode steps and attention over a cache.
#pragma once

#include "host/kernels/contraction.h"
#include "host/kernels/skinny_kernels.h"

namespace nxl::host {

// The kernels of this CPU.
const SkinnyKernels& skinny_kernels();

// What runs the contraction, or null when its shape, layout or types are not this kernel's. bf16, f16 and f32 in any
// mix; sums are f32 and round once.
Kernel prepare_skinny(const Contraction& contraction, const SkinnyKernels& kernels = skinny_kernels());

}  // namespace nxl::host
