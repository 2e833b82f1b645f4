// SPDX-License-Identifier: Apache-2.0
// Mutual proof of a pre-shared key: HMAC-SHA256 over both names, incarnations and nonces. Keys never reach a log.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/api.h"
#include "core/digest.h"
#include "kv/region.h"

namespace nxl::kv {

using Nonce = std::array<uint8_t, 32>;
using Secret = std::array<uint8_t, 32>;
inline constexpr size_t kFrameCodeBytes = 16;

// From getrandom(2). Throws Error(kUnavailable) when the kernel has none to give.
NXL_API void random_bytes(std::span<std::byte> out);
NXL_API Key random_key();
NXL_API uint64_t random_id();  // never 0

NXL_API Sha256Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);

// Takes the same time wherever the two differ.
NXL_API bool equal_in_constant_time(std::span<const uint8_t> a, std::span<const uint8_t> b);

// The bytes of the file without one closing newline. Throws Error(kInvalid) unless it is a regular file of this user's
// that nobody else may read, with 16 to 4096 bytes.
NXL_API std::vector<std::byte> load_key_file(const std::string& path);

// What both ends know after CHALLENGE. Each proof and secret has its own label, so none can stand for another.
struct NXL_API Transcript {
  std::string connector, acceptor;
  Key connector_incarnation{}, acceptor_incarnation{};
  Nonce connector_nonce{}, acceptor_nonce{};
  uint64_t session = 0;

  Secret derive(std::span<const std::byte> key, const char* label) const;
};

// Code of one control frame under the session's key.
NXL_API std::array<uint8_t, kFrameCodeBytes> frame_code(const Secret& key, bool from_connector, uint8_t type,
                                                        uint64_t session, uint64_t sequence,
                                                        std::span<const std::byte> body);

}  // namespace nxl::kv
