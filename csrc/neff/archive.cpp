// SPDX-License-Identifier: Apache-2.0
// The tar reader.
#include "neff/archive.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/checked.h"
#include "core/error.h"

namespace nxl::neff {
namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kMaxEntries = 65536;

struct TarHeader {
  char name[100];
  char mode[8];
  char uid[8];
  char gid[8];
  char size[12];
  char mtime[12];
  char checksum[8];
  char type;
  char link_name[100];
  char magic[8];  // "ustar\0" "00", or GNU's "ustar  \0"
  char owner[32];
  char group[32];
  char device_major[8];
  char device_minor[8];
  char prefix[155];
  char padding[12];
};
static_assert(sizeof(TarHeader) == kBlock);

template <size_t N>
std::string_view text_of(const char (&field)[N]) {
  return {field, strnlen(field, N)};
}

// Octal digits between optional spaces and a NUL or space; or, with the top bit of the first byte set, base 256.
template <size_t N>
uint64_t number_of(const char (&field)[N], uint64_t entry, const char* what) {
  const auto fail = [&](const char* why) {
    throw_error(ErrorKind::kInvalid, detail::concat("NEFF archive, entry ", entry, ": ", what, " ", why));
  };
  const auto first = static_cast<uint8_t>(field[0]);
  if ((first & 0x80) != 0) {
    if ((first & 0x40) != 0) fail("is negative");
    uint64_t value = first & 0x3F;
    for (size_t i = 1; i < N; ++i) {
      if (value >> 56 != 0) fail("is larger than 64 bits");
      value = value << 8 | static_cast<uint8_t>(field[i]);
    }
    return value;
  }
  size_t i = 0;
  while (i < N && field[i] == ' ') ++i;
  const size_t start = i;
  uint64_t value = 0;  // 12 octal digits are 36 bits: no overflow
  for (; i < N && field[i] >= '0' && field[i] <= '7'; ++i) value = value * 8 + static_cast<uint64_t>(field[i] - '0');
  if (i == start) fail("is not a number");
  for (; i < N; ++i) {
    if (field[i] != ' ' && field[i] != '\0') fail("is not a number");
  }
  return value;
}

bool is_zero_block(std::span<const std::byte> block) {
  return std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
}

uint64_t checksum_of(std::span<const std::byte> block) {
  uint64_t sum = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const bool in_checksum = i >= offsetof(TarHeader, checksum) && i < offsetof(TarHeader, type);
    sum += in_checksum ? uint64_t{' '} : std::to_integer<uint64_t>(block[i]);
  }
  return sum;
}

const char* refused_type(char type) {
  switch (type) {
    case '1':
      return "a hard link";
    case '2':
      return "a symbolic link";
    case '3':
    case '4':
      return "a device";
    case '6':
      return "a FIFO";
    case 'L':
    case 'K':
      return "a GNU long name (keep paths under 100 bytes)";
    case 'x':
    case 'g':
      return "a pax extended header (write the archive in ustar format)";
    default:
      return "of an unknown type";
  }
}

// The path without a leading "./" and a trailing "/". Empty for the top folder itself.
std::string normal_path(const std::string& raw, uint64_t entry) {
  const auto fail = [&](const char* why) {
    throw_error(ErrorKind::kInvalid, detail::concat("NEFF archive, entry ", entry, ": the path '", raw, "' ", why));
  };
  std::string_view path = raw;
  for (const char c : path) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F || c == '\\') {
      throw_error(ErrorKind::kInvalid,
                  detail::concat("NEFF archive, entry ", entry, ": a path holds a control character or a backslash"));
    }
  }
  if (path.starts_with('/')) fail("is absolute");
  while (path.starts_with("./")) path.remove_prefix(2);
  if (path.ends_with('/')) path.remove_suffix(1);
  if (path == ".") path = {};
  for (std::string_view rest = path; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    if (part.empty() || part == ".") fail("has an empty component");
    if (part == "..") fail("leaves the archive");
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    if (rest.empty() && path.back() == '/') fail("has an empty component");
  }
  return std::string(path);
}

}  // namespace

Files read_tar(std::span<const std::byte> archive) {
  Files files;
  uint64_t at = 0;
  for (uint64_t entry = 0;; ++entry) {
    NXL_CHECK(range_within(at, kBlock, archive.size()), kInvalid, "NEFF archive, entry ", entry,
              ": the header at byte ", at, " passes the end (", archive.size(), " bytes); the file is truncated");
    const std::span<const std::byte> block = archive.subspan(at, kBlock);
    at += kBlock;
    if (is_zero_block(block)) {
      // The end is two zero blocks; writers may pad with more.
      NXL_CHECK(range_within(at, kBlock, archive.size()) && is_zero_block(archive.subspan(at, kBlock)), kInvalid,
                "NEFF archive: the end mark at byte ", at - kBlock, " is not two zero blocks; the file is damaged");
      return files;
    }
    NXL_CHECK(entry < kMaxEntries, kInvalid, "NEFF archive: more than ", kMaxEntries, " entries");

    TarHeader header;
    std::memcpy(&header, block.data(), sizeof(header));
    const uint64_t stated = number_of(header.checksum, entry, "the checksum");
    const uint64_t actual = checksum_of(block);
    NXL_CHECK(stated == actual, kInvalid, "NEFF archive, entry ", entry, ": the header's checksum is ", actual,
              ", it states ", stated, "; the file is damaged");
    const bool posix = std::memcmp(header.magic,
                                   "ustar\0"
                                   "00",
                                   8) == 0;
    const bool gnu = std::memcmp(header.magic, "ustar  \0", 8) == 0;
    NXL_CHECK(posix || gnu, kInvalid, "NEFF archive, entry ", entry, ": the magic is neither ustar nor GNU tar");

    const bool folder = header.type == '5';
    NXL_CHECK(folder || header.type == '0' || header.type == '\0', kInvalid, "NEFF archive, entry ", entry, " ('",
              normal_path(std::string(text_of(header.name)), entry), "') is ", refused_type(header.type),
              "; only regular files and folders are accepted");
    std::string raw;
    if (posix && header.prefix[0] != '\0') raw = std::string(text_of(header.prefix)) + "/";
    raw += text_of(header.name);
    NXL_CHECK(!raw.empty(), kInvalid, "NEFF archive, entry ", entry, " has no name");
    std::string path = normal_path(raw, entry);
    const uint64_t size = number_of(header.size, entry, "the size");
    if (folder) {
      NXL_CHECK(size == 0, kInvalid, "NEFF archive, folder '", path, "' states ", size, " bytes");
      continue;
    }
    NXL_CHECK(!path.empty() && !raw.ends_with('/'), kInvalid, "NEFF archive, entry ", entry,
              ": a file with the name of a folder, '", raw, "'");
    NXL_CHECK(range_within(at, size, archive.size()), kInvalid, "NEFF archive, '", path, "': ", size, " bytes at byte ",
              at, " pass the end (", archive.size(), " bytes)");
    const auto [position, inserted] = files.try_emplace(std::move(path), archive.subspan(at, size));
    NXL_CHECK(inserted, kInvalid, "NEFF archive: '", position->first, "' is there twice");
    at += size;
    const uint64_t padding = (kBlock - size % kBlock) % kBlock;
    NXL_CHECK(range_within(at, padding, archive.size()), kInvalid, "NEFF archive, '", position->first,
              "': its last block passes the end (", archive.size(), " bytes); the file is truncated");
    at += padding;
  }
}

}  // namespace nxl::neff
