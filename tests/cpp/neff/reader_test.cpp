// SPDX-License-Identifier: Apache-2.0
// The NEFF reader on good files, and on every way the signature can be wrong.
#include "neff/reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/digest.h"
#include "core/error.h"
#include "neff/layout.h"
#include "neff/sample.h"

namespace nxl::test {
namespace {

using neff::Neff;

std::string error_of(std::span<const std::byte> bytes, bool verify_digest = true) {
  try {
    Neff::open(bytes, verify_digest);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << error.what();
    return error.what();
  }
  return "";
}

std::string error_of_definition(const std::string& variables) {
  neff::Contents contents = host_contents();
  contents.files["sg00/def.json"] = R"({"version":1,"target":"host","var":{)" + variables + "}}";
  return error_of(neff::write(contents));
}

void expect_error(const std::string& actual, const std::string& part) {
  EXPECT_NE(actual.find(part), std::string::npos) << "wanted '" << part << "', got '" << actual << "'";
}

TEST(NeffReader, ReadsAHostFile) {
  const std::vector<std::byte> bytes = neff::write(host_contents());
  const Neff neff = Neff::open(bytes);
  EXPECT_EQ(neff.target(), "host");
  EXPECT_EQ(neff.header().name, "decode");
  EXPECT_EQ(neff.header().build_version, "1.0");
  EXPECT_EQ(neff.header().data_size, bytes.size() - 1024);
  ASSERT_EQ(neff.inputs().size(), 2u);
  EXPECT_EQ(neff.inputs()[0].name, "input0");
  EXPECT_EQ(neff.inputs()[0].bytes, 24u);
  EXPECT_EQ(neff.inputs()[0].dtype, DType::kFloat32);
  EXPECT_EQ(neff.inputs()[0].shape, (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(neff.outputs().size(), 2u);
  EXPECT_EQ(neff.outputs()[0].alias_input, 1);
  EXPECT_EQ(neff.outputs()[1].alias_input, -1);
  EXPECT_TRUE(neff.outputs()[1].shape.empty());
  EXPECT_EQ(neff.file("sg00/constants.bin").size(), 1000u);
  EXPECT_EQ(neff.files().size(), 4u);
  EXPECT_THROW(neff.file("sg01/def.json"), Error);
}

TEST(NeffReader, OrdersVariablesByIdNotByName) {
  neff::Contents contents = host_contents();
  contents.files["sg00/def.json"] = R"({"version":1,"target":"host","var":{
    "input10":{"type":"input","var_id":1,"size":1,"dtype":"u8","shape":[1]},
    "input2":{"type":"input","var_id":0,"size":1,"dtype":"u8","shape":[1]}}})";
  const std::vector<std::byte> bytes = neff::write(contents);
  const Neff neff = Neff::open(bytes);
  EXPECT_EQ(neff.inputs()[0].name, "input2");
  EXPECT_EQ(neff.inputs()[1].name, "input10");
}

TEST(NeffReader, ReadsAChipFileAsFarAsItSays) {
  const std::vector<std::byte> bytes = neff::write(chip_contents());
  const Neff neff = Neff::open(bytes);
  EXPECT_EQ(neff.target(), "chip");
  ASSERT_EQ(neff.inputs().size(), 1u);
  EXPECT_EQ(neff.inputs()[0].bytes, 24u);
  EXPECT_FALSE(neff.inputs()[0].has_shape);
  ASSERT_EQ(neff.outputs().size(), 1u);
  neff::Contents bare = chip_contents();
  bare.files.erase("neff.json");
  EXPECT_EQ(Neff::open(neff::write(bare)).target(), "chip");
  bare.files.erase("sg00/def.json");
  expect_error(error_of(neff::write(bare)), "neither neff.json nor sg00/def.json");
}

TEST(NeffReader, MovesWithItsViews) {
  const std::vector<std::byte> bytes = neff::write(host_contents());
  Neff first = Neff::open(bytes);
  const Neff second = std::move(first);
  EXPECT_EQ(std::to_integer<int>(second.file("sg00/constants.bin")[999]), 1);
}

TEST(NeffReader, TheWriterIsDeterministicAndTheHeaderIsAsStated) {
  const std::vector<std::byte> bytes = neff::write(host_contents());
  EXPECT_EQ(bytes, neff::write(host_contents()));
  neff::RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  EXPECT_EQ(raw.header_size, 1024u);
  const Sha256Digest digest = sha256(std::span(bytes).subspan(1024));
  EXPECT_TRUE(std::equal(digest.begin(), digest.end(), raw.hash));
  neff::Contents bad = host_contents();
  bad.name = "two\nlines";
  EXPECT_THROW(neff::write(bad), Error);
  bad = host_contents();
  bad.files[std::string(101, 'p')] = "";
  EXPECT_THROW(neff::write(bad), Error);
}

TEST(NeffReader, AcceptsTheMd5OfOlderPackages) {
  std::vector<std::byte> bytes = neff::write(chip_contents());
  const Md5Digest digest = md5(std::span(bytes).subspan(1024));
  std::memset(bytes.data() + offsetof(neff::RawHeader, hash), 0, 32);
  std::memcpy(bytes.data() + offsetof(neff::RawHeader, hash), digest.data(), digest.size());
  EXPECT_EQ(error_of(bytes), "");
  bytes.back() = std::byte{1};
  expect_error(error_of(bytes), "digest");
}

TEST(NeffReader, RefusesEveryTruncation) {
  const std::vector<std::byte> bytes = neff::write(host_contents());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of(std::span(bytes).first(size)), "") << size;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  expect_error(error_of(longer), "longer than it says");
}

// Also with the sizes made to fit, so that the cut is found by the archive and not by the header.
TEST(NeffReader, RefusesEveryTruncationOfTheArchive) {
  const neff::Contents contents = host_contents();
  const std::vector<std::byte> archive = neff::write_tar(contents.files);
  for (size_t size = 0; size < archive.size(); ++size) {
    std::vector<std::byte> cut(archive.begin(), archive.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(error_of(neff::with_header(contents, cut)), "") << size;
  }
}

TEST(NeffReader, FindsEveryFlippedBitOfTheData) {
  const std::vector<std::byte> bytes = neff::write(host_contents());
  for (size_t i = 1024; i < bytes.size(); i += 7) {
    std::vector<std::byte> flipped = bytes;
    flipped[i] ^= std::byte{static_cast<uint8_t>(1u << (i % 8))};
    expect_error(error_of(flipped), "digest");
  }
}

// Also in reserved bytes and behind the end of a text: the uuid of a host NEFF covers its header.
TEST(NeffReader, FindsEveryFlippedBitOfAHostHeader) {
  const std::vector<std::byte> bytes = neff::write(host_contents());
  for (size_t bit = 0; bit < size_t{8} * neff::kHeaderBytes; ++bit) {
    std::vector<std::byte> flipped = bytes;
    flipped[bit / 8] ^= std::byte{static_cast<uint8_t>(1u << (bit % 8))};
    EXPECT_NE(error_of(flipped), "") << "byte " << bit / 8;
  }
}

TEST(NeffReader, LeavesTheReservedBytesOfAChipHeaderToNrt) {
  std::vector<std::byte> bytes = neff::write(chip_contents());
  bytes[neff::kHeaderBytes - 1] = std::byte{1};
  bytes[offsetof(neff::RawHeader, uuid)] ^= std::byte{1};
  EXPECT_EQ(error_of(bytes), "");
}

// Without the digest a flip in a file's content is not seen; one in a tar header is, by its checksum.
TEST(NeffReader, SurvivesEveryFlippedBitAndSeesThoseInTarHeaders) {
  const neff::Contents contents = host_contents();
  const std::vector<std::byte> bytes = neff::write(contents);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> flipped = bytes;
    flipped[i] ^= std::byte{static_cast<uint8_t>(1u << (i % 8))};
    const std::string error = error_of(flipped, false);
    const bool in_tar_header = i >= 1024 && i < 1024 + 512;
    const bool in_checksum = i >= 1024 + 148 && i < 1024 + 156;  // '0' and ' ' may stand for each other there
    EXPECT_TRUE(!in_tar_header || in_checksum || !error.empty()) << i;
  }
}

TEST(NeffReader, RefusesABadHeader) {
  const std::vector<std::byte> good = neff::write(host_contents());
  const auto with_u64 = [&](size_t offset, uint64_t value) {
    std::vector<std::byte> bytes = good;
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
    return error_of(bytes);
  };
  expect_error(with_u64(8, 512), "header_size is 512, it must be 1024");
  expect_error(with_u64(16, UINT64_MAX), "data_size is 18446744073709551615");
  expect_error(with_u64(16, 0), "data_size is 0");
  std::vector<std::byte> bytes = good;
  std::memset(bytes.data() + offsetof(neff::RawHeader, name), 'n', 256);
  expect_error(error_of(bytes), "name is not terminated within 256 bytes");
  bytes = good;
  bytes[offsetof(neff::RawHeader, build_version)] = std::byte{7};
  expect_error(error_of(bytes), "not printable ASCII");
  expect_error(error_of({}), "not a NEFF: 0 bytes");
}

TEST(NeffReader, RefusesABadTarget) {
  neff::Contents contents = host_contents();
  contents.files["neff.json"] = R"({"version":2,"target":"host"})";
  expect_error(error_of(neff::write(contents)), "version 2 of the host format is not known");
  contents.files["neff.json"] = R"({"version":1,"target":"trn2"})";
  expect_error(error_of(neff::write(contents)), "name different targets");
  contents.files["neff.json"] = R"({"version":1,"target":"../x"})";
  expect_error(error_of(neff::write(contents)), "target must be");
  contents.files["neff.json"] = R"([])";
  expect_error(error_of(neff::write(contents)), "must be a JSON object");
  contents.files["neff.json"] = "{";
  expect_error(error_of(neff::write(contents)), "JSON, byte 1");
  contents = host_contents();
  contents.files.erase("sg00/def.json");
  expect_error(error_of(neff::write(contents)), "has no 'sg00/def.json'");
}

TEST(NeffReader, RefusesABadSignature) {
  const std::string good = R"("input0":{"type":"input","var_id":0,"size":4,"dtype":"f32","shape":[1]})";
  EXPECT_EQ(error_of_definition(good), "");
  EXPECT_EQ(error_of_definition(
                R"("i":{"type":"input","var_id":0,"size":0,"dtype":"f32","shape":[0,9223372036854775807,8]})"),
            "");
  expect_error(error_of_definition(R"("i":{"type":"input","var_id":1,"size":4,"dtype":"f32","shape":[1]})"),
               "input 'i' has var_id 1, the inputs must count 0 to 0");
  expect_error(error_of_definition(good + R"(,"i":{"type":"input","var_id":0,"size":4,"dtype":"f32","shape":[1]})"),
               "has var_id 0, the inputs must count 0 to 1");
  expect_error(error_of_definition(R"("i":{"type":"input","var_id":-1,"size":4,"dtype":"f32","shape":[1]})"),
               "var_id must be an integer >= 0");
  expect_error(error_of_definition(R"("i":{"type":"input","var_id":0,"size":5,"dtype":"f32","shape":[1]})"),
               "size is 5 bytes, dtype and shape need 4");
  expect_error(
      error_of_definition(
          R"("i":{"type":"input","var_id":0,"size":8,"dtype":"f64","shape":[4294967296,4294967296,4294967296]})"),
      "more than 2^64 bytes");
  expect_error(error_of_definition(R"("i":{"type":"input","var_id":0,"size":8,"dtype":"f64","shape":[-1]})"),
               "a dimension of size -1");
  expect_error(error_of_definition(R"("i":{"type":"input","var_id":0,"size":8,"dtype":"f99","shape":[1]})"),
               "unknown dtype 'f99'");
  expect_error(error_of_definition(R"("i":{"type":"input","var_id":0,"size":8})"), "must state dtype and shape");
  expect_error(error_of_definition(R"("i":{"type":"tmp-buf","var_id":0,"size":8})"), "a variable of type 'tmp-buf'");
  expect_error(error_of_definition(R"("i":{"var_id":0,"size":8})"), "the key 'type' is missing");
  expect_error(error_of_definition(R"("":{"type":"input","var_id":0,"size":1,"dtype":"u8","shape":[1]})"),
               "name must be");
  expect_error(error_of_definition(R"("a\u0000b":{"type":"input","var_id":0,"size":1,"dtype":"u8","shape":[1]})"),
               "name must be");
  expect_error(error_of_definition("\"" + std::string(256, 'n') +
                                   R"(":{"type":"input","var_id":0,"size":1,"dtype":"u8","shape":[1]})"),
               "name must be 1 to 255");
  std::string rank;
  for (int i = 0; i < 33; ++i) rank += i == 0 ? "1" : ",1";
  expect_error(error_of_definition(R"("i":{"type":"input","var_id":0,"size":1,"dtype":"u8","shape":[)" + rank + "]}"),
               "33 dimensions, the limit is 32");
}

TEST(NeffReader, RefusesABadAlias) {
  const std::string input = R"("input0":{"type":"input","var_id":0,"size":4,"dtype":"f32","shape":[1]},)";
  expect_error(error_of_definition(
                   input + R"("o":{"type":"output","var_id":0,"size":4,"dtype":"f32","shape":[1],"alias":"input9"})"),
               "alias of an input that does not exist");
  expect_error(error_of_definition(
                   input + R"("o":{"type":"output","var_id":0,"size":8,"dtype":"f32","shape":[2],"alias":"input0"})"),
               "has 8 bytes, the input 'input0' whose memory it is has 4");
  expect_error(error_of_definition(R"("i":{"type":"input","var_id":0,"size":4,"dtype":"f32","shape":[1],"alias":"i"})"),
               "only an output may be an alias");
}

}  // namespace
}  // namespace nxl::test
