// SPDX-License-Identifier: Apache-2.0
// Row loops with AVX-512.
#include "host/kernels/row_kernels.h"

#if defined(__x86_64__)
// GCC 12 warns about the undefined operands inside its own intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

// Exported by torch, whose own kernels use them; within 1 ulp.
extern "C" {
__m512 Sleef_expf16_u10(__m512);
__m512 Sleef_tanhf16_u10(__m512);
__m512 Sleef_erff16_u10(__m512);
}

namespace nxl::host {

namespace {

// The loops are written over the vector, which comes first.
// clang-format off
#include "host/kernels/vector_avx512.h"
#include "host/kernels/row_loops.h"
// clang-format on

constexpr RowKernels kKernels = make_row_kernels("avx512");

}  // namespace

#pragma GCC pop_options

const RowKernels& row_kernels_avx512() { return kKernels; }

}  // namespace nxl::host

#pragma GCC diagnostic pop
#endif
