// SPDX-License-Identifier: Apache-2.0
// The archive inside a NEFF: tar, or tar in gzip.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace nxl::neff {

using Files = std::map<std::string, std::span<const std::byte>, std::less<>>;

// The regular files of a ustar or GNU archive as views into it. Throws Error(kInvalid) naming the entry, the field, the
// value and the limit for anything else: links, devices, extended headers, absolute or escaping paths, duplicates, bad
// checksums, sizes past the end, more than 65536 entries.
Files read_tar(std::span<const std::byte> archive);

bool is_gzip(std::span<const std::byte> data);
// One gzip member and nothing after it. Throws Error(kInvalid), also past 8 GiB; Error(kUnsupported) when this build
// has no zlib.
std::vector<std::byte> inflate_gzip(std::span<const std::byte> data);

}  // namespace nxl::neff
