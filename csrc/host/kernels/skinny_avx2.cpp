// SPDX-License-Identifier: Apache-2.0
// Skinny products with AVX2, FMA and F16C.
#include "host/kernels/skinny_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace nxl::host {

namespace {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

struct Vector {
  using Reg = __m256;
  static constexpr int kWidth = 8;
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg broadcast(float value) { return _mm256_set1_ps(value); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg load(const BFloat16* p) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
  static Reg load(const Float16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static void store(float* p, Reg value) { _mm256_storeu_ps(p, value); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(Reg value) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
  static float widen(float value) { return value; }
  static float widen(BFloat16 value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16); }
  static float widen(Float16 value) { return _cvtsh_ss(value.bits); }
};

#include "host/kernels/skinny_loops.h"

constexpr SkinnyKernels kKernels = {
    {&dot<BFloat16>, &dot<Float16>, &dot<float>}, {&axpy<BFloat16>, &axpy<Float16>, &axpy<float>}, "avx2"};

}  // namespace

#pragma GCC pop_options

const SkinnyKernels& skinny_kernels_avx2() { return kKernels; }

}  // namespace nxl::host

#endif
