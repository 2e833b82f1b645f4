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

namespace nxl::host {

namespace {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

struct Vector {
  using Reg = __m512;
  static constexpr int kWidth = 16;
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg broadcast(float value) { return _mm512_set1_ps(value); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load(const BFloat16* p) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
  static Reg load(const Float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static void store(float* p, Reg value) { _mm512_storeu_ps(p, value); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Reg value) { return _mm512_reduce_add_ps(value); }
  static float widen(float value) { return value; }
  static float widen(BFloat16 value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16); }
  static float widen(Float16 value) { return _cvtsh_ss(value.bits); }
};

#include "host/kernels/skinny_loops.h"

constexpr SkinnyKernels kKernels = {
    {&dot<BFloat16>, &dot<Float16>, &dot<float>}, {&axpy<BFloat16>, &axpy<Float16>, &axpy<float>}, "avx512"};

}  // namespace

#pragma GCC pop_options

const SkinnyKernels& skinny_kernels_avx512() { return kKernels; }

}  // namespace nxl::host

#pragma GCC diagnostic pop
#endif
