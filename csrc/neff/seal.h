// SPDX-License-Identifier: Apache-2.0
// The uuid of a host NEFF: a digest of its header, whose `hash` covers the data, so that every bit is checked.
#pragma once

#include <array>
#include <cstdint>

#include "neff/layout.h"

namespace nxl::neff {

// sha256 of the header with its uuid zeroed, cut to 16 bytes, with the version (8: custom) and variant of RFC 9562.
std::array<uint8_t, 16> sealed_uuid(RawHeader header);

}  // namespace nxl::neff
