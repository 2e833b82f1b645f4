// SPDX-License-Identifier: Apache-2.0
// sha256 against the FIPS vectors and its two paths against each other; md5 against RFC 1321.
#include "core/digest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nxl {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

template <size_t N>
std::string hex(const std::array<uint8_t, N>& digest) {
  std::string out;
  for (const uint8_t byte : digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

TEST(Digest, Sha256Vectors) {
  EXPECT_EQ(hex(sha256(bytes_of(""))), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(bytes_of(std::string(1000000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, Sha256PathsAgreeAtEveryLengthAroundTheBlockSize) {
  std::string text;
  for (int length = 0; length < 300; ++length) {
    EXPECT_EQ(hex(sha256(bytes_of(text))), hex(sha256_portable(bytes_of(text)))) << length;
    text += static_cast<char>(length * 37 + 11);
  }
}

TEST(Digest, Md5Vectors) {
  EXPECT_EQ(hex(md5(bytes_of(""))), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(hex(md5(bytes_of("abc"))), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(hex(md5(bytes_of("12345678901234567890123456789012345678901234567890123456789012345678901234567890"))),
            "57edf4a22be3c955ac49da2e2107b67a");
}

}  // namespace
}  // namespace nxl
