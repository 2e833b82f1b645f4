// SPDX-License-Identifier: Apache-2.0
// Descriptor lists: by row and by number, strided rows, pairs that do not fit, and a transfer by index.
#include "kv/descriptors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kv/reader.h"

namespace nxl::kv {
namespace {

using namespace test;  // NOLINT: a test program of its own

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

TEST(Descriptors, AreCountedThroughStridedRows) {
  const DescriptorList list({{7, 100, 8, 0, 1}, {8, 0, 16, 64, 3}, {9, 5, 1, 1, 2}});
  ASSERT_EQ(list.size(), 6u);
  const auto place = [&](uint32_t index) {
    const auto at = list.at(index);
    return std::tuple(at.region, at.offset, at.bytes);
  };
  EXPECT_EQ(place(0), std::tuple(7u, uint64_t{100}, uint64_t{8}));
  EXPECT_EQ(place(1), std::tuple(8u, uint64_t{0}, uint64_t{16}));
  EXPECT_EQ(place(3), std::tuple(8u, uint64_t{128}, uint64_t{16}));
  EXPECT_EQ(place(5), std::tuple(9u, uint64_t{6}, uint64_t{1}));
  EXPECT_NE(refusal([&] { list.at(6); }).find("descriptor 6 of a list of 6"), std::string::npos);
  EXPECT_EQ(DescriptorList({}).size(), 0u);
}

TEST(Descriptors, RowsAreChecked) {
  EXPECT_NE(refusal([] { DescriptorList({{0, 0, 8, 0, 1}, {0, 0, 0, 0, 1}}); }).find("row 1"), std::string::npos);
  EXPECT_NE(refusal([] { DescriptorList({{0, 0, 8, 0, 0}}); }).find("row 0"), std::string::npos);
  EXPECT_NE(refusal([] { DescriptorList({{0, UINT64_MAX, 8, 0, 1}}); }).find("beyond 2^64"), std::string::npos);
  EXPECT_NE(refusal([] { DescriptorList({{0, 0, 8, UINT64_MAX, 3}}); }).find("beyond 2^64"), std::string::npos);
  EXPECT_NE(refusal([] {
              DescriptorList({{0, 0, 1, 1, UINT32_MAX}, {0, 0, 1, 1, 1}});
            }).find("the limit"),
            std::string::npos);
}

TEST(Descriptors, NeighboursBecomeOneRun) {
  const DescriptorList source({{1, 0, 32, 32, 8}}), target({{2, 0, 32, 32, 4}, {2, 512, 32, 64, 4}});
  const std::vector<uint32_t> from{0, 1, 2, 5, 6}, to{0, 1, 2, 4, 5};
  const auto runs = runs_between(source, from, target, to);
  ASSERT_EQ(runs.size(), 3u);  // 0, 1, 2 together; the last two are neighbours at the source only
  EXPECT_EQ(runs[0].bytes, 96u);
  EXPECT_EQ(runs[1].source_offset, 160u);
  EXPECT_EQ(runs[1].target_offset, 512u);
  EXPECT_EQ(runs[2].target_offset, 576u);
  EXPECT_NE(refusal([&] { runs_between(source, from, target, std::span(to).first(2)); }).find("5 descriptors"),
            std::string::npos);
  const DescriptorList other({{2, 0, 31, 32, 8}});
  EXPECT_NE(refusal([&] { runs_between(source, from, other, to); }).find("pair 0"), std::string::npos);
}

TEST(Descriptors, MoveBytesBetweenTwoProcessesByIndex) {
  ServerProcess server(Settings{});
  Reader reader;
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  const DescriptorList remote({{0, 0, 4096, 8192, 128}}), local({{reader.region, 0, 4096, 4096, 256}});
  const std::vector<uint32_t> theirs{127, 3, 4, 90}, ours{0, 1, 2, 255};
  const TransferId read = reader.agent->prepare_read(peer, remote, theirs, local, ours);
  ASSERT_TRUE(reader.agent->post(read, kLong, "").is_ok());
  ASSERT_EQ(reader.agent->wait(read, kLong).state, TransferState::kDone);
  for (size_t i = 0; i < ours.size(); ++i) {
    for (uint64_t at = 0; at < 4096; at += 511) {
      ASSERT_EQ(reader.memory.data[ours[i] * 4096 + at], pattern(1, theirs[i] * 8192 + at));
    }
  }
  const TransferId write = reader.agent->prepare_write(peer, local, ours, remote, std::vector<uint32_t>{0, 1, 2, 3});
  ASSERT_TRUE(reader.agent->post(write, kLong, "").is_ok());
  ASSERT_EQ(reader.agent->wait(write, kLong).state, TransferState::kDone);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(server.ask("checksum " + std::to_string(i * 8192) + " 4096"),
              std::to_string(crc32c(reader.memory.span().subspan(ours[i] * 4096, 4096))));
  }
  // A descriptor that leaves its region is refused before anything moves.
  const DescriptorList outside({{0, kBytes - 100, 4096, 0, 1}});
  EXPECT_NE(refusal([&] {
              reader.agent->prepare_read(peer, outside, std::vector<uint32_t>{0}, local, std::vector<uint32_t>{0});
            }).find("leaves the source region"),
            std::string::npos);
}

}  // namespace
}  // namespace nxl::kv
