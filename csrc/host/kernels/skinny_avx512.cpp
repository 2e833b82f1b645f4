// SPDX-License-Identifier: Apache-2.0
// Skinny products with AVX-512.
#include "host/kernels/skinny_kernels.h"

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
#include "host/kernels/skinny_loops.h"
// clang-format on

constexpr SkinnyKernels kKernels = {
    {&dot<BFloat16>, &dot<Float16>, &dot<float>}, {&axpy<BFloat16>, &axpy<Float16>, &axpy<float>}, "avx512"};

}  // namespace

#pragma GCC pop_options

const SkinnyKernels& skinny_kernels_avx512() { return kKernels; }

}  // namespace nxl::host

#pragma GCC diagnostic pop
#endif
