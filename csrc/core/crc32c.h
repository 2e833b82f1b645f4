// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli, RFC 3720 appendix B.4) of what travels between processes: it detects damage, it proves no origin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/api.h"

namespace nxl {

// The checksum of `data`, or with `preceding` (the checksum of the bytes before it) of both together:
// crc32c(b, crc32c(a)) == crc32c(ab). Uses the CRC instructions of the CPU when it has them.
NXL_API uint32_t crc32c(std::span<const std::byte> data, uint32_t preceding = 0);
// The portable path, always: the reference that the other one is tested against.
NXL_API uint32_t crc32c_portable(std::span<const std::byte> data, uint32_t preceding = 0);

}  // namespace nxl
