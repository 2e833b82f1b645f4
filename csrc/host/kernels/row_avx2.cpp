// SPDX-License-Identifier: Apache-2.0
// Row loops with AVX2, FMA and F16C.
#include "host/kernels/row_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

// Exported by torch, whose own kernels use them; within 1 ulp.
extern "C" {
__m256 Sleef_expf8_u10(__m256);
__m256 Sleef_tanhf8_u10(__m256);
__m256 Sleef_erff8_u10(__m256);
}

namespace nxl::host {

namespace {

// The loops are written over the vector, which comes first.
// clang-format off
#include "host/kernels/vector_avx2.h"
#include "host/kernels/row_loops.h"
// clang-format on

constexpr RowKernels kKernels = make_row_kernels("avx2");

}  // namespace

#pragma GCC pop_options

const RowKernels& row_kernels_avx2() { return kKernels; }

}  // namespace nxl::host

#endif
