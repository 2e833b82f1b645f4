// SPDX-License-Identifier: Apache-2.0
// Vectors of 8 floats with AVX2, FMA and F16C. Included inside the anonymous namespace of a file that is compiled for
// these instructions, so nothing here is shared between files; row_loops.h and skinny_loops.h say what a Vector offers.

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
  static void store_exact(float* p, Reg value) { store(p, value); }
  static void store_exact(BFloat16* p, Reg value) {
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(value), 16);
    const __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow);
  }
  static void store_exact(Float16* p, Reg value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg sqrt(Reg x) { return _mm256_sqrt_ps(x); }
  static Reg negate(Reg x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
  static Reg abs(Reg x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static Reg tanh(Reg x) { return Sleef_tanhf8_u10(x); }
  static Reg erf(Reg x) { return Sleef_erff8_u10(x); }
  static Reg exp(Reg x) { return Sleef_expf8_u10(x); }
  // NaN of either side wins.
  static Reg maximum(Reg a, Reg b) {
    return _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  static Reg minimum(Reg a, Reg b) {
    return _mm256_blendv_ps(_mm256_min_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  static float largest(Reg value) {
    if (_mm256_movemask_ps(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)) != 0) return __builtin_nanf("");
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
  static Reg keep(Reg value, const uint8_t* flags, Reg otherwise) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(flags)));
    return _mm256_blendv_ps(value, otherwise, _mm256_castsi256_ps(_mm256_cmpeq_epi32(wide, _mm256_setzero_si256())));
  }
  static Reg round_bfloat16(Reg value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const Reg finite = _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
    return _mm256_blendv_ps(finite, _mm256_set1_ps(__builtin_nanf("")), _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  }
  static Reg round_float16(Reg value) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static float sum(Reg value) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
  static void narrow_exact(float* p, float value) { *p = value; }
  static void narrow_exact(BFloat16* p, float value) {
    p->bits = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16);
  }
  static void narrow_exact(Float16* p, float value) { p->bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
  static float widen(float value) { return value; }
  static float widen(BFloat16 value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16); }
  static float widen(Float16 value) { return _cvtsh_ss(value.bits); }
};
