// SPDX-License-Identifier: Apache-2.0
// Cut runs cover the same bytes in the same order; bounds of runs with hostile numbers.
#include "kv/providers/run_cursor.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace nxl::kv {
namespace {

// Source and target offset of every byte, in order.
std::vector<std::pair<uint64_t, uint64_t>> bytes_of(const kv::Run& run) {
  std::vector<std::pair<uint64_t, uint64_t>> bytes;
  for (uint64_t piece = 0; piece < run.count; ++piece) {
    for (uint64_t i = 0; i < run.bytes; ++i) {
      bytes.emplace_back(run.source_offset + piece * run.source_stride + i,
                         run.target_offset + piece * run.target_stride + i);
    }
  }
  return bytes;
}

TEST(RunCursor, PartsAreTheRunsInOrderAndKeepTheirLimits) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<kv::Run> runs(random() % 5);
    std::vector<std::pair<uint64_t, uint64_t>> expected;
    for (kv::Run& run : runs) {
      run = {0,
             0,
             random() % 1000,
             random() % 1000,
             random() % 20,
             random() % 50,
             random() % 50,
             static_cast<uint32_t>(random() % 8)};
      const auto bytes = bytes_of(run);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
    std::vector<std::pair<uint64_t, uint64_t>> seen;
    RunCursor cursor(runs);
    while (!cursor.at_end()) {
      const uint64_t most_bytes = 1 + random() % 40;
      const uint64_t most_pieces = 1 + random() % 4;
      const size_t index = cursor.run();
      const kv::Run part = cursor.next(most_bytes, most_pieces);
      ASSERT_LT(index, runs.size());
      ASSERT_GT(part.total_bytes(), 0u);
      ASSERT_LE(part.total_bytes(), most_bytes);
      ASSERT_LE(part.count, most_pieces);
      const auto bytes = bytes_of(part);
      seen.insert(seen.end(), bytes.begin(), bytes.end());
    }
    ASSERT_EQ(seen, expected) << round;
  }
}

TEST(RunWithin, HostileNumbersNeverWrap) {
  const kv::Run good{
      .source_offset = 0, .target_offset = 8, .bytes = 8, .source_stride = 16, .target_stride = 8, .count = 4};
  EXPECT_TRUE(run_within(good, 56, 40));
  EXPECT_FALSE(run_within(good, 55, 40));
  EXPECT_FALSE(run_within(good, 56, 39));
  kv::Run run = good;
  run.source_stride = UINT64_MAX / 2;
  EXPECT_FALSE(run_within(run, UINT64_MAX, 40));
  run = good;
  run.source_offset = UINT64_MAX;
  EXPECT_FALSE(run_within(run, UINT64_MAX, 40));
  run = good;
  run.bytes = UINT64_MAX;
  EXPECT_FALSE(run_within(run, UINT64_MAX, UINT64_MAX));
  run = good;
  run.count = UINT32_MAX;
  run.target_stride = UINT64_MAX / UINT32_MAX + 1;
  EXPECT_FALSE(run_within(run, UINT64_MAX, UINT64_MAX));
}

TEST(TotalBytes, OverflowIsAnAnswer) {
  const kv::Run huge{.bytes = UINT64_MAX / 2, .count = 1};
  EXPECT_EQ(total_bytes(std::vector{huge, huge}), UINT64_MAX - 1);
  EXPECT_FALSE(total_bytes(std::vector{huge, huge, huge}));
  EXPECT_FALSE(total_bytes(std::vector{kv::Run{.bytes = UINT64_MAX, .count = 2}}));
}

}  // namespace
}  // namespace nxl::kv
