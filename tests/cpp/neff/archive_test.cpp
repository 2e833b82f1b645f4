// SPDX-License-Identifier: Apache-2.0
// The archive inside a NEFF: hostile tar entries, and gzip.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>

#include "core/error.h"
#include "neff/reader.h"
#include "neff/sample.h"

namespace nxl::test {
namespace {

using neff::Neff;

constexpr size_t kSize = 124, kChecksum = 148, kType = 156, kMagic = 257, kPrefix = 345;

// Opens the host sample with its first entry (neff.json) changed by `edit` and the checksum made right again.
template <typename Edit>
std::string error_of_entry(Edit&& edit) {
  const neff::Contents contents = host_contents();
  std::vector<std::byte> archive = neff::write_tar(contents.files);
  char* block = reinterpret_cast<char*>(archive.data());
  edit(block);
  std::memset(block + kChecksum, ' ', 8);
  unsigned sum = 0;
  for (int i = 0; i < 512; ++i) sum += static_cast<uint8_t>(block[i]);
  std::snprintf(block + kChecksum, 7, "%06o", sum);
  try {
    Neff::open(neff::with_header(contents, archive));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

std::string error_of_name(const std::string& name) {
  return error_of_entry([&](char* block) {
    std::memset(block, 0, 100);
    std::memcpy(block, name.data(), name.size());
  });
}

void expect_error(const std::string& actual, const std::string& part) {
  EXPECT_NE(actual.find(part), std::string::npos) << "wanted '" << part << "', got '" << actual << "'";
}

TEST(NeffArchive, RefusesPathsThatLeaveIt) {
  EXPECT_EQ(error_of_name("./neff.json"), "");
  expect_error(error_of_name("/etc/passwd"), "the path '/etc/passwd' is absolute");
  expect_error(error_of_name(".//etc/passwd"), "empty component");
  expect_error(error_of_name(".."), "leaves the archive");
  expect_error(error_of_name("../neff.json"), "leaves the archive");
  expect_error(error_of_name("sg00/../../neff.json"), "leaves the archive");
  expect_error(error_of_name("sg00/.."), "leaves the archive");
  expect_error(error_of_name("sg00//x"), "empty component");
  expect_error(error_of_name("sg00/./x"), "empty component");
  expect_error(error_of_name("sg00//"), "empty component");
  expect_error(error_of_name("."), "a file with the name of a folder");
  expect_error(error_of_name("sg00/"), "a file with the name of a folder");
  expect_error(error_of_name(""), "has no name");
  expect_error(error_of_name("a\nb"), "control character");
  expect_error(error_of_name("a\\b"), "backslash");
  expect_error(error_of_entry([](char* block) { std::memcpy(block + kPrefix, "..", 2); }), "leaves the archive");
  expect_error(error_of_entry([](char* block) { std::memcpy(block + kPrefix, "/", 1); }), "is absolute");
}

TEST(NeffArchive, RefusesDuplicates) {
  expect_error(error_of_name("sg00/def.json"), "'sg00/def.json' is there twice");
  expect_error(error_of_name("./sg00/def.json"), "'sg00/def.json' is there twice");
}

TEST(NeffArchive, RefusesEverythingButFilesAndFolders) {
  const std::map<char, std::string> refused = {{'1', "a hard link"},  {'2', "a symbolic link"}, {'3', "a device"},
                                               {'4', "a device"},     {'6', "a FIFO"},          {'L', "GNU long name"},
                                               {'x', "pax extended"}, {'g', "pax extended"},    {'S', "unknown type"}};
  for (const auto& [type, words] : refused) {
    expect_error(error_of_entry([&, t = type](char* block) { block[kType] = t; }), words);
  }
  expect_error(error_of_entry([](char* block) { block[kType] = '5'; }), "folder 'neff.json' states");
}

TEST(NeffArchive, AcceptsFoldersGnuMagicAndBase256Sizes) {
  EXPECT_EQ(error_of_entry([](char* block) { block[kType] = '\0'; }), "");
  EXPECT_EQ(error_of_entry([](char* block) { std::memcpy(block + kMagic, "ustar  \0", 8); }), "");
  EXPECT_EQ(error_of_entry([](char* block) {
              const auto size = static_cast<uint8_t>(host_contents().files["neff.json"].size());
              std::memset(block + kSize, 0, 12);
              block[kSize] = '\x80';
              block[kSize + 11] = static_cast<char>(size);
            }),
            "");
}

TEST(NeffArchive, RefusesBadNumbersAndMagics) {
  expect_error(error_of_entry([](char* block) { std::memcpy(block + kMagic, "xstar", 5); }), "magic");
  const auto size = [](const std::string& field) {
    return error_of_entry([&](char* block) {
      std::memset(block + kSize, 0, 12);
      std::memcpy(block + kSize, field.data(), field.size());
    });
  };
  expect_error(size(""), "the size is not a number");
  expect_error(size("9"), "the size is not a number");
  expect_error(size("12x"), "the size is not a number");
  expect_error(size("77777777777"), "pass the end");
  expect_error(size(std::string("\x80\0\0\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 12)), "18446744073709551615 bytes");
  expect_error(size(std::string("\x80\0\0\x01\0\0\0\0\0\0\0\0", 12)), "larger than 64 bits");
  expect_error(size("\xFF\xFF"), "is negative");
}

TEST(NeffArchive, RefusesAWrongChecksumAndAMissingEnd) {
  const neff::Contents contents = host_contents();
  std::vector<std::byte> archive = neff::write_tar(contents.files);
  std::vector<std::byte> changed = archive;
  changed[0] = std::byte{'N'};
  const auto open = [&](const std::vector<std::byte>& data) -> std::string {
    try {
      Neff::open(neff::with_header(contents, data));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  expect_error(open(changed), "checksum");
  archive.resize(archive.size() - 512);
  expect_error(open(archive), "not two zero blocks");
  archive.resize(archive.size() - 512);
  expect_error(open(archive), "truncated");
}

TEST(NeffArchive, LimitsTheNumberOfEntries) {
  neff::Contents contents = host_contents();
  for (int i = 0; i < 65536; ++i) contents.files["f/" + std::to_string(i)] = "";
  try {
    Neff::open(neff::write(contents));
    FAIL() << "more entries than the limit";
  } catch (const Error& error) {
    expect_error(error.what(), "more than 65536 entries");
  }
}

std::vector<std::byte> gzip(const std::vector<std::byte>& data) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::vector<std::byte> out(deflateBound(&stream, data.size()));
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(NeffArchive, ReadsGzip) {
  neff::Contents contents = host_contents();
  contents.files["sg00/constants.bin"] = std::string(3000000, '\x02');  // larger than the first guess of the inflater
  const std::vector<std::byte> bytes = neff::with_header(contents, gzip(neff::write_tar(contents.files)));
  Neff first = Neff::open(bytes);
  const Neff neff = std::move(first);
  EXPECT_EQ(neff.inputs().size(), 2u);
  EXPECT_EQ(std::to_integer<int>(neff.file("sg00/constants.bin")[2999999]), 2);
}

TEST(NeffArchive, RefusesDamagedGzip) {
  const neff::Contents contents = host_contents();
  const std::vector<std::byte> archive = gzip(neff::write_tar(contents.files));
  const auto open = [&](const std::vector<std::byte>& data) -> std::string {
    try {
      Neff::open(neff::with_header(contents, data));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(open(archive), "");
  for (size_t size = 2; size < archive.size(); ++size) {
    expect_error(open({archive.begin(), archive.begin() + static_cast<std::ptrdiff_t>(size)}), "gzip data is damaged");
  }
  for (size_t i = 2; i < archive.size(); ++i) {
    std::vector<std::byte> flipped = archive;
    flipped[i] ^= std::byte{0x10};
    // The format ignores time, extra flags and system, and the bits after the end mark in the last byte of the data.
    const bool ignored = (i >= 4 && i <= 9) || i == archive.size() - 9;
    EXPECT_TRUE(ignored || !open(flipped).empty()) << i;
  }
  std::vector<std::byte> longer = archive;
  longer.push_back(std::byte{0});
  expect_error(open(longer), "1 bytes after the gzip data");
}

}  // namespace
}  // namespace nxl::test
