// SPDX-License-Identifier: Apache-2.0
// Vectors of 16 floats with AVX-512. Included inside the anonymous namespace of a file that is compiled for these
// instructions, so nothing here is shared between files; row_loops.h and skinny_loops.h say what a Vector offers.

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
  static void store_exact(float* p, Reg value) { store(p, value); }
  static void store_exact(BFloat16* p, Reg value) {
    const __m512i high = _mm512_srli_epi32(_mm512_castps_si512(value), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
  }
  static void store_exact(Float16* p, Reg value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg sqrt(Reg x) { return _mm512_sqrt_ps(x); }
  static Reg negate(Reg x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
  static Reg abs(Reg x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x); }
  static Reg tanh(Reg x) { return Sleef_tanhf16_u10(x); }
  static Reg erf(Reg x) { return Sleef_erff16_u10(x); }
  static Reg exp(Reg x) { return Sleef_expf16_u10(x); }
  // NaN of either side wins.
  static Reg maximum(Reg a, Reg b) {
    return _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
  }
  static Reg minimum(Reg a, Reg b) {
    return _mm512_mask_mov_ps(_mm512_min_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
  }
  static float largest(Reg value) {
    return _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q) != 0 ? __builtin_nanf("") : _mm512_reduce_max_ps(value);
  }
  static Reg keep(Reg value, const uint8_t* flags, Reg otherwise) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(flags));
    return _mm512_mask_mov_ps(otherwise, _mm_test_epi8_mask(bytes, bytes), value);
  }
  static Reg round_bfloat16(Reg value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    up = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  static Reg round_float16(Reg value) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static float sum(Reg value) { return _mm512_reduce_add_ps(value); }
  static void narrow_exact(float* p, float value) { *p = value; }
  static void narrow_exact(BFloat16* p, float value) {
    p->bits = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16);
  }
  static void narrow_exact(Float16* p, float value) { p->bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
  static float widen(float value) { return value; }
  static float widen(BFloat16 value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16); }
  static float widen(Float16 value) { return _cvtsh_ss(value.bits); }
};
