// SPDX-License-Identifier: Apache-2.0
// sha256 and md5 of a buffer, for the digest in the NEFF header. Why our own: no crypto library may be assumed on the
// machines the wheel runs on, and these digests detect damage, they protect no secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/api.h"

namespace nxl {

using Sha256Digest = std::array<uint8_t, 32>;
using Md5Digest = std::array<uint8_t, 16>;

// Uses the SHA instructions of the CPU when it has them.
NXL_API Sha256Digest sha256(std::span<const std::byte> data);
// The portable path, always: the reference that the other one is tested against.
NXL_API Sha256Digest sha256_portable(std::span<const std::byte> data);

// Only for NEFFs of older package versions, whose header holds an md5.
NXL_API Md5Digest md5(std::span<const std::byte> data);

}  // namespace nxl
