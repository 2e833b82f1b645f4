// SPDX-License-Identifier: Apache-2.0
// The bytes of the NEFF header, little endian with natural alignment. Reader and writer share it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace nxl::neff {

static_assert(std::endian::native == std::endian::little, "the header is read and written as a struct");

struct RawHeader {
  uint64_t pkg_version;
  uint64_t header_size;
  uint64_t data_size;
  uint64_t version_major;
  uint64_t version_minor;
  char build_version[128];
  uint32_t num_tpb;
  uint8_t hash[32];
  uint8_t uuid[16];
  char name[256];
  uint32_t requested_tpb_count;
  uint8_t tpb_per_node[64];
  uint64_t feature_bits;
  uint32_t lnc_size;
  uint8_t padding[468];
};
static_assert(offsetof(RawHeader, build_version) == 40);
static_assert(offsetof(RawHeader, num_tpb) == 168);
static_assert(offsetof(RawHeader, hash) == 172);
static_assert(offsetof(RawHeader, uuid) == 204);
static_assert(offsetof(RawHeader, name) == 220);
static_assert(offsetof(RawHeader, requested_tpb_count) == 476);
static_assert(offsetof(RawHeader, feature_bits) == 544);
static_assert(offsetof(RawHeader, lnc_size) == 552);
static_assert(offsetof(RawHeader, padding) == 556);
static_assert(sizeof(RawHeader) == 1024);

inline constexpr size_t kHeaderBytes = sizeof(RawHeader);
inline constexpr size_t kNameLimit = 255;  // NRT's tensor names: 256 bytes with the NUL

}  // namespace nxl::neff
