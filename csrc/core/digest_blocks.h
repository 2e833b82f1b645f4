// SPDX-License-Identifier: Apache-2.0
// What md5 and sha256 share: the message in blocks of 64 bytes, the last ones padded with the message's length.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace nxl {

inline constexpr size_t kDigestBlock = 64;

// Compresses `data` into `state`, then its tail: 0x80, zeros, and the length in bits as 8 bytes of the given order.
template <typename State>
void digest_blocks(State& state, std::span<const std::byte> data, void (*compress)(State&, const uint8_t*, size_t),
                   std::endian length_order) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(data.data());
  const size_t whole = data.size() / kDigestBlock;
  const size_t rest = data.size() % kDigestBlock;
  compress(state, bytes, whole);
  uint8_t tail[2 * kDigestBlock] = {};
  if (rest != 0) std::memcpy(tail, bytes + whole * kDigestBlock, rest);
  tail[rest] = 0x80;
  const size_t tail_blocks = rest < kDigestBlock - 8 ? 1 : 2;
  const uint64_t bits = uint64_t{data.size()} * 8;
  uint8_t* length = tail + tail_blocks * kDigestBlock - 8;
  for (int i = 0; i < 8; ++i) {
    length[i] = static_cast<uint8_t>(bits >> 8 * (length_order == std::endian::little ? i : 7 - i));
  }
  compress(state, tail, tail_blocks);
}

}  // namespace nxl
