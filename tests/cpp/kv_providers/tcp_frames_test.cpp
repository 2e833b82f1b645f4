// SPDX-License-Identifier: Apache-2.0
// Data-connection frames: what is written is read back, and nothing damaged or too large is accepted.
#include "kv/providers/tcp_frames.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "core/crc32c.h"
#include "core/error.h"
#include "kv/wire.h"

namespace nxl::kv {
namespace {

bool refuses(const std::function<void()>& decode) {
  try {
    decode();
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return true;
  }
}

ReadRequest sample_request() {
  ReadRequest request;
  request.regions = {{7, {1, 2}}, {9, {3, 4}}};
  request.runs = {{.source_region = 0, .source_offset = 5, .bytes = 6, .source_stride = 7, .count = 8},
                  {.source_region = 1, .source_offset = 100, .bytes = 1, .count = 1}};
  return request;
}

TEST(DataHeader, RoundTripAndEveryFlippedBitIsSeen) {
  const DataHeader header{DataFrame::kData, kDataFlagChecksum, 77, 1234, 0xabcdef};
  auto bytes = encode_header(header);
  const DataHeader back = decode_header(bytes);
  EXPECT_EQ(back.type, header.type);
  EXPECT_EQ(back.flags, header.flags);
  EXPECT_EQ(back.sequence, header.sequence);
  EXPECT_EQ(back.body_bytes, header.body_bytes);
  EXPECT_EQ(back.body_crc, header.body_crc);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(refuses([&] { decode_header(bytes); })) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

TEST(DataHeader, HoldsEveryTypeToItsLimits) {
  EXPECT_TRUE(refuses([] { decode_header(encode_header({DataFrame::kData, 0, 1, kDataChunkBytes + 1, 0})); }));
  EXPECT_FALSE(refuses([] { decode_header(encode_header({DataFrame::kData, 0, 1, kDataChunkBytes, 0})); }));
  EXPECT_TRUE(refuses([] { decode_header(encode_header({DataFrame::kRead, 0, 1, kMaxControlBody + 1, 0})); }));
  EXPECT_TRUE(refuses([] { decode_header(encode_header({DataFrame::kProof, 0, 1, 33, 0})); }));
  EXPECT_TRUE(refuses([] { decode_header(encode_header({DataFrame::kWord, kDataFlagChecksum, 1, 8, 0})); }));
  EXPECT_TRUE(refuses([] { decode_header(encode_header({DataFrame::kData, 2, 1, 8, 0})); }));
  for (const int type : {0, 8, 255}) {
    EXPECT_TRUE(refuses([&] { decode_header(encode_header({static_cast<DataFrame>(type), 0, 1, 0, 0})); })) << type;
  }
}

TEST(ReadRequestBody, RoundTrip) {
  const ReadRequest request = sample_request();
  const ReadRequest back = decode_read(encode_read(request));
  ASSERT_EQ(back.regions.size(), 2u);
  EXPECT_EQ(back.regions[1].index, 9u);
  EXPECT_EQ(back.regions[1].key, (Key{3, 4}));
  ASSERT_EQ(back.runs.size(), 2u);
  EXPECT_EQ(back.runs[0].source_offset, 5u);
  EXPECT_EQ(back.runs[0].bytes, 6u);
  EXPECT_EQ(back.runs[0].source_stride, 7u);
  EXPECT_EQ(back.runs[0].count, 8u);
  EXPECT_EQ(back.runs[1].source_region, 1u);
}

TEST(ReadRequestBody, RefusesWhatBreaksALimit) {
  const auto with = [](const std::function<void(ReadRequest&)>& change) {
    ReadRequest request = sample_request();
    change(request);
    return refuses([&] { decode_read(encode_read(request)); });
  };
  EXPECT_FALSE(with([](ReadRequest&) {}));
  EXPECT_TRUE(with([](ReadRequest& r) { r.runs.clear(); }));
  EXPECT_TRUE(with([](ReadRequest& r) { r.runs[0].source_region = 2; }));
  EXPECT_TRUE(with([](ReadRequest& r) { r.runs[0].bytes = 0; }));
  EXPECT_TRUE(with([](ReadRequest& r) { r.runs[0].count = 0; }));
  EXPECT_TRUE(with([](ReadRequest& r) { r.runs[0].bytes = kMaxRequestBytes; }));
  EXPECT_TRUE(with([](ReadRequest& r) { r.runs[0].bytes = UINT64_MAX; }));
  EXPECT_TRUE(with([](ReadRequest& r) { r.runs.resize(kMaxRequestRuns + 1, r.runs[0]); }));
  EXPECT_TRUE(with([](ReadRequest& r) { r.regions.resize(kMaxRequestRegions + 1); }));
  const auto body = encode_read(sample_request());
  for (size_t length = 0; length < body.size(); ++length) {
    EXPECT_TRUE(refuses([&] { decode_read(std::span(body).first(length)); })) << length;
  }
}

TEST(StatusBody, RoundTripAndLimits) {
  const RequestStatus back = decode_status(encode_status({4, Cause::kRefused, 99, std::string(5000, 'x')}));
  EXPECT_EQ(back.code, 4);
  EXPECT_EQ(back.cause, Cause::kRefused);
  EXPECT_EQ(back.word, 99u);
  EXPECT_EQ(back.text, std::string(kMaxStatusText, 'x'));
  auto body = encode_status({0, Cause::kNone, 0, ""});
  body[4] = std::byte{kCauseCount};
  EXPECT_TRUE(refuses([&] { decode_status(body); }));
  body[4] = std::byte{0};
  body.push_back(std::byte{0});
  EXPECT_TRUE(refuses([&] { decode_status(body); }));
}

// Bodies behind a valid checksum, as a hostile peer can make them: whatever is accepted keeps every limit.
TEST(DataFrames, RandomBodiesNeverBreakALimit) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20000; ++round) {
    auto body = encode_read(sample_request());
    for (uint64_t flips = 1 + random() % 4; flips != 0; --flips) body[random() % body.size()] = std::byte(random());
    if (random() % 4 == 0) body.resize(random() % body.size());
    try {
      const ReadRequest request = decode_read(body);
      ASSERT_LE(request.runs.size(), kMaxRequestRuns);
      uint64_t total = 0;
      for (const kv::Run& run : request.runs) {
        ASSERT_LT(run.source_region, request.regions.size());
        ASSERT_GT(run.total_bytes(), 0u);
        total += run.total_bytes();
      }
      ASSERT_LE(total, kMaxRequestBytes);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kInvalid);
    }
  }
}

TEST(DataProof, DiffersBySecretSessionSideRoleAndNonce) {
  const Secret secret{1}, other{2};
  const Nonce a{3}, b{4};
  const auto proof = data_proof(secret, 5, true, true, a, b);
  EXPECT_EQ(proof, data_proof(secret, 5, true, true, a, b));
  EXPECT_NE(proof, data_proof(other, 5, true, true, a, b));
  EXPECT_NE(proof, data_proof(secret, 6, true, true, a, b));
  EXPECT_NE(proof, data_proof(secret, 5, false, true, a, b));
  EXPECT_NE(proof, data_proof(secret, 5, true, false, a, b));
  EXPECT_NE(proof, data_proof(secret, 5, true, true, b, a));
}

}  // namespace
}  // namespace nxl::kv
