// SPDX-License-Identifier: Apache-2.0
// Skinny products in plain C++: four lanes that any compiler maps to its vectors.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>

#include "host/kernels/skinny_kernels.h"

namespace nxl::host {

namespace {

// The loops are written over the vector, which comes first.
// clang-format off
#include "host/kernels/vector_portable.h"
#include "host/kernels/skinny_loops.h"
// clang-format on

constexpr SkinnyKernels kKernels = {
    {&dot<BFloat16>, &dot<Float16>, &dot<float>}, {&axpy<BFloat16>, &axpy<Float16>, &axpy<float>}, "portable"};

}  // namespace

const SkinnyKernels& skinny_kernels_portable() { return kKernels; }

}  // namespace nxl::host
