// SPDX-License-Identifier: Apache-2.0
// CRC32C against published values, and the CPU's instruction against the portable path.
#include "core/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace nxl {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937_64 random(count);
  std::vector<std::byte> data(count);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

TEST(Crc32c, PublishedValues) {
  std::vector<std::byte> counting(32);
  for (size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<std::byte>(i);
  for (const auto checksum : {crc32c, crc32c_portable}) {
    EXPECT_EQ(checksum({}, 0), 0u);
    EXPECT_EQ(checksum(bytes_of("123456789"), 0), 0xe3069283u);
    EXPECT_EQ(checksum(std::vector<std::byte>(32), 0), 0x8a9136aau);                   // RFC 3720
    EXPECT_EQ(checksum(std::vector<std::byte>(32, std::byte{0xff}), 0), 0x62a8ab43u);  // RFC 3720
    EXPECT_EQ(checksum(counting, 0), 0x46dd794eu);                                     // RFC 3720
  }
}

TEST(Crc32c, EveryLengthAndOffsetEqualsThePortablePath) {
  const std::vector<std::byte> data = random_bytes(80000);
  for (size_t length = 0; length < 2000; ++length) {
    const auto part = std::span(data).subspan(length % 9, length);
    ASSERT_EQ(crc32c(part), crc32c_portable(part)) << length;
  }
  for (const size_t length : {3 * 8192 - 1, 3 * 8192, 3 * 8192 + 1, 6 * 8192 + 777, 79990}) {
    const auto part = std::span(data).subspan(3, length);
    EXPECT_EQ(crc32c(part), crc32c_portable(part)) << length;
  }
}

TEST(Crc32c, IsTheSameInPieces) {
  const std::vector<std::byte> data = random_bytes(60000);
  const uint32_t whole = crc32c(data);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{768}, size_t{24577}, data.size()}) {
    EXPECT_EQ(crc32c(std::span(data).subspan(cut), crc32c(std::span(data).first(cut))), whole) << cut;
  }
}

TEST(Crc32c, SeesEverySingleFlippedBit) {
  std::vector<std::byte> data = random_bytes(128);
  const uint32_t whole = crc32c(data);
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(crc32c(data), whole) << bit;
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace nxl
