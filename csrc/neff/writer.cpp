// SPDX-License-Identifier: Apache-2.0
// The writer of NEFF containers.
#include "neff/writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>

#include "core/digest.h"
#include "core/error.h"
#include "neff/layout.h"
#include "neff/seal.h"

namespace nxl::neff {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kPathLimit = 100;
constexpr uint64_t kSizeLimit = (uint64_t{1} << 33) - 1;  // 11 octal digits
constexpr uint64_t kPackageVersion = 2;                   // the first whose hash is a sha256 in our files

void append(std::vector<std::byte>& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void pad_to_block(std::vector<std::byte>& out) { out.resize((out.size() + kBlock - 1) / kBlock * kBlock); }

void append_tar_header(std::vector<std::byte>& out, const std::string& path, uint64_t size) {
  NXL_CHECK(!path.empty() && path.size() <= kPathLimit, kInvalid, "NEFF archive: the path '", path, "' has ",
            path.size(), " bytes, the limit is ", kPathLimit);
  NXL_CHECK(size <= kSizeLimit, kInvalid, "NEFF archive: '", path, "' has ", size, " bytes, the limit is ", kSizeLimit);
  char block[kBlock] = {};
  std::memcpy(block, path.data(), path.size());
  std::memcpy(block + 100, "0000644", 7);  // mode
  std::memcpy(block + 108, "0000000", 7);  // owner
  std::memcpy(block + 116, "0000000", 7);  // group
  std::snprintf(block + 124, 12, "%011llo", static_cast<unsigned long long>(size));
  std::memcpy(block + 136, "00000000000", 11);  // time
  std::memset(block + 148, ' ', 8);             // the checksum counts as spaces in its own sum
  block[156] = '0';
  std::memcpy(block + 257,
              "ustar\0"
              "00",
              8);
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<uint8_t>(c);
  std::snprintf(block + 148, 7, "%06o", sum);
  append(out, std::string_view(block, sizeof(block)));
}

template <size_t N>
void set_text(char (&field)[N], const std::string& text, const char* what) {
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  NXL_CHECK(printable && text.size() < N, kInvalid, "NEFF header: ", what, " must be printable ASCII of at most ",
            N - 1, " bytes");
  std::memcpy(field, text.data(), text.size());
}

}  // namespace

std::vector<std::byte> write_tar(const std::map<std::string, std::string>& files) {
  std::vector<std::byte> out;
  for (const auto& [path, content] : files) {
    append_tar_header(out, path, content.size());
    append(out, content);
    pad_to_block(out);
  }
  out.resize(out.size() + 2 * kBlock);
  return out;
}

std::vector<std::byte> with_header(const Contents& contents, const std::vector<std::byte>& archive) {
  RawHeader raw{};
  raw.pkg_version = kPackageVersion;
  raw.header_size = kHeaderBytes;
  raw.data_size = archive.size();
  raw.version_major = 1;
  set_text(raw.build_version, contents.build_version, "neff_build_version");
  raw.num_tpb = 1;
  const Sha256Digest digest = sha256(archive);
  std::copy(digest.begin(), digest.end(), raw.hash);
  set_text(raw.name, contents.name, "name");
  raw.requested_tpb_count = 1;
  raw.tpb_per_node[0] = 1;
  raw.lnc_size = 1;
  const std::array<uint8_t, 16> uuid = sealed_uuid(raw);
  std::copy(uuid.begin(), uuid.end(), raw.uuid);
  std::vector<std::byte> out(kHeaderBytes + archive.size());
  std::memcpy(out.data(), &raw, sizeof(raw));
  std::copy(archive.begin(), archive.end(), out.begin() + kHeaderBytes);
  return out;
}

std::vector<std::byte> write(const Contents& contents) { return with_header(contents, write_tar(contents.files)); }

}  // namespace nxl::neff
