// SPDX-License-Identifier: Apache-2.0
// FIPS 180-4 SHA-256: a portable compression function and one on the x86 SHA instructions, chosen once at run time.
#include <bit>

#include "core/digest.h"
#include "core/digest_blocks.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nxl {
namespace {

alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;
using Compress = void (*)(State&, const uint8_t*, size_t blocks);

uint32_t load_big(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void store_big(uint8_t* p, uint32_t v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(v >> (24 - 8 * i));
}

void compress_portable(State& state, const uint8_t* data, size_t blocks) {
  for (; blocks != 0; --blocks, data += kDigestBlock) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = load_big(data + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const State mixed = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < state.size(); ++i) state[i] += mixed[i];
  }
}

#if defined(__x86_64__)
__attribute__((target("sha,sse4.1,ssse3"))) void compress_sha_ni(State& state, const uint8_t* data, size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  // The instructions keep the state as ABEF and CDGH.
  __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data()));
  __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data() + 4));
  low = _mm_shuffle_epi32(low, 0xB1);
  high = _mm_shuffle_epi32(high, 0x1B);
  __m128i abef = _mm_alignr_epi8(low, high, 8);
  __m128i cdgh = _mm_blend_epi16(high, low, 0xF0);
  for (; blocks != 0; --blocks, data += kDigestBlock) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
    }
    for (int group = 0; group < 16; ++group) {
      __m128i& current = w[group & 3];
      if (group >= 4) {  // the next four words of the schedule
        const __m128i& w1 = w[(group + 1) & 3];
        const __m128i& w2 = w[(group + 2) & 3];
        const __m128i& w3 = w[(group + 3) & 3];
        current = _mm_add_epi32(_mm_sha256msg1_epu32(current, w1), _mm_alignr_epi8(w3, w2, 4));
        current = _mm_sha256msg2_epu32(current, w3);
      }
      const __m128i key = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * group));
      const __m128i sum = _mm_add_epi32(current, key);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  low = _mm_shuffle_epi32(abef, 0x1B);
  high = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(low, high, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(high, low, 8));
}
#endif

Compress best_compress() {
#if defined(__x86_64__)
  // __builtin_cpu_supports knows "sha" only from GCC 14 on, so the CPUID bit (leaf 7, EBX 29) is read here.
  uint32_t eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  if ((ebx >> 29 & 1) != 0 && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3")) {
    return compress_sha_ni;
  }
#endif
  return compress_portable;
}

Sha256Digest digest(std::span<const std::byte> data, Compress compress) {
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  digest_blocks(state, data, compress, std::endian::big);
  Sha256Digest out;
  for (size_t i = 0; i < state.size(); ++i) store_big(out.data() + 4 * i, state[i]);
  return out;
}

}  // namespace

Sha256Digest sha256(std::span<const std::byte> data) {
  static const Compress compress = best_compress();
  return digest(data, compress);
}

Sha256Digest sha256_portable(std::span<const std::byte> data) { return digest(data, compress_portable); }

}  // namespace nxl
