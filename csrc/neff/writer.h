// SPDX-License-Identifier: Apache-2.0
// NEFF container writer: files and a few header fields to bytes that the reader opens.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/api.h"

namespace nxl::neff {

struct Contents {
  std::string name;                          // printable ASCII, at most 255 bytes
  std::string build_version;                 // printable ASCII, at most 127 bytes
  std::map<std::string, std::string> files;  // path (at most 100 bytes) to content
};

// Header with a true sha256 and a sealed uuid (neff/seal.h), then a plain ustar archive whose bytes depend on the
// contents only: no times, no owners. Throws Error(kInvalid) for a name or path that does not fit.
NXL_API std::vector<std::byte> write(const Contents& contents);

// The archive alone, and a header in front of a ready archive (plain or gzip).
NXL_API std::vector<std::byte> write_tar(const std::map<std::string, std::string>& files);
NXL_API std::vector<std::byte> with_header(const Contents& contents, const std::vector<std::byte>& archive);

}  // namespace nxl::neff
