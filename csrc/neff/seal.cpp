// SPDX-License-Identifier: Apache-2.0
// The uuid of a host NEFF.
#include "neff/seal.h"

#include <algorithm>
#include <span>

#include "core/digest.h"

namespace nxl::neff {

std::array<uint8_t, 16> sealed_uuid(RawHeader header) {
  std::fill(std::begin(header.uuid), std::end(header.uuid), uint8_t{0});
  const Sha256Digest digest = sha256(std::as_bytes(std::span(&header, 1)));
  std::array<uint8_t, 16> uuid{};
  std::copy_n(digest.begin(), uuid.size(), uuid.begin());
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0F) | 0x80);
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3F) | 0x80);
  return uuid;
}

}  // namespace nxl::neff
