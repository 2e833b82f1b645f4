// SPDX-License-Identifier: Apache-2.0
// CRC32C: slicing by eight, and the x86 instruction in three lanes, chosen once at run time.
#include "core/crc32c.h"

#include <array>
#include <bit>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nxl {
namespace {

using Crc32c = uint32_t (*)(const std::byte*, size_t, uint32_t);
using Table = std::array<uint32_t, 256>;

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> slices{};
  for (uint32_t n = 0; n < 256; ++n) {
    uint32_t crc = n;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ kPolynomial : crc >> 1;
    slices[0][n] = crc;
  }
  for (size_t k = 1; k < slices.size(); ++k) {
    for (uint32_t n = 0; n < 256; ++n) slices[k][n] = slices[k - 1][n] >> 8 ^ slices[0][slices[k - 1][n] & 0xff];
  }
  return slices;
}
constexpr std::array<Table, 8> kSlices = make_slices();

uint64_t load_little(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

uint32_t extend_portable(const std::byte* p, size_t bytes, uint32_t crc) {
  for (; bytes >= 8; p += 8, bytes -= 8) {
    const uint64_t word = load_little(p) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kSlices[7 - i][word >> (8 * i) & 0xff];
  }
  for (; bytes != 0; ++p, --bytes) crc = crc >> 8 ^ kSlices[0][(crc ^ static_cast<uint32_t>(*p)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
// Note: three lanes. The CRC instruction has a latency of three cycles and a throughput of one, so three neighbouring
// stretches are summed side by side. Joining them needs the first two moved on over the bytes behind them: a
// multiplication by x^(8 * bytes) modulo the polynomial, which is linear and therefore four table look-ups.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1 ? b >> 1 ^ kPolynomial : b >> 1;
  }
  return product;
}

constexpr std::array<Table, 4> make_shift(size_t bytes) {
  uint32_t power = uint32_t{1} << 31;                                                                      // x^0
  for (uint32_t square = uint32_t{1} << 23; bytes != 0; bytes >>= 1, square = multiply(square, square)) {  // x^8
    if (bytes & 1) power = multiply(power, square);
  }
  std::array<Table, 4> shift{};
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t n = 0; n < 256; ++n) shift[k][n] = multiply(power, n << (8 * k));
  }
  return shift;
}

constexpr size_t kLongLane = 8192;
constexpr size_t kShortLane = 256;
constexpr std::array<Table, 4> kLongShift = make_shift(kLongLane);
constexpr std::array<Table, 4> kShortShift = make_shift(kShortLane);

uint32_t moved_on(const std::array<Table, 4>& shift, uint64_t crc) {
  return shift[0][crc & 0xff] ^ shift[1][crc >> 8 & 0xff] ^ shift[2][crc >> 16 & 0xff] ^ shift[3][crc >> 24 & 0xff];
}

template <size_t kLane>
__attribute__((target("sse4.2"))) void extend_lanes(const std::byte*& p, size_t& bytes, uint64_t& crc,
                                                    const std::array<Table, 4>& shift) {
  for (; bytes >= 3 * kLane; p += 3 * kLane, bytes -= 3 * kLane) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      crc = _mm_crc32_u64(crc, load_little(p + i));
      second = _mm_crc32_u64(second, load_little(p + kLane + i));
      third = _mm_crc32_u64(third, load_little(p + 2 * kLane + i));
    }
    crc = moved_on(shift, moved_on(shift, crc) ^ second) ^ third;
  }
}

__attribute__((target("sse4.2"))) uint32_t extend_sse42(const std::byte* p, size_t bytes, uint32_t start) {
  uint64_t crc = start;
  extend_lanes<kLongLane>(p, bytes, crc, kLongShift);
  extend_lanes<kShortLane>(p, bytes, crc, kShortShift);
  for (; bytes >= 8; p += 8, bytes -= 8) crc = _mm_crc32_u64(crc, load_little(p));
  auto tail = static_cast<uint32_t>(crc);
  for (; bytes != 0; ++p, --bytes) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return tail;
}
#endif

Crc32c choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return extend_sse42;
#endif
  return extend_portable;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> data, uint32_t preceding) {
  static const Crc32c extend = choose();
  return ~extend(data.data(), data.size(), ~preceding);
}

uint32_t crc32c_portable(std::span<const std::byte> data, uint32_t preceding) {
  return ~extend_portable(data.data(), data.size(), ~preceding);
}

}  // namespace nxl
