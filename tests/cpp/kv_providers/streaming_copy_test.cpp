// SPDX-License-Identifier: Apache-2.0
// Every copy kernel of this CPU against memcpy: sizes, alignments, and nothing written beside the pieces.
#include "kv/providers/streaming_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace nxl::kv {
namespace {

class StreamingCopy : public testing::TestWithParam<const char*> {};

TEST_P(StreamingCopy, EqualsMemcpy) {
  if (!copy_pieces_with(GetParam(), {})) GTEST_SKIP() << "this CPU has no " << GetParam();
  std::mt19937 random(3);
  std::vector<std::byte> source(1 << 20), target(1 << 20), expected(1 << 20);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 20; ++round) {
    std::vector<Piece> pieces;
    for (size_t at = random() % 100; at < target.size();) {
      const size_t limits[] = {8, 200, 5000, 70000};
      const size_t bytes = std::min<size_t>(random() % limits[random() % 4], target.size() - at);
      const size_t from = random() % (source.size() - bytes + 1);
      pieces.push_back({target.data() + at, source.data() + from, bytes});
      std::memcpy(expected.data() + at, source.data() + from, bytes);
      at += bytes + random() % 100;
    }
    ASSERT_TRUE(copy_pieces_with(GetParam(), pieces));
    ASSERT_EQ(std::memcmp(target.data(), expected.data(), target.size()), 0) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, StreamingCopy, testing::Values("avx512", "avx2", "portable"),
                         [](const auto& info) { return std::string(info.param); });

TEST(StreamingCopyChoice, NamesAKernelThatRuns) { EXPECT_TRUE(copy_pieces_with(streaming_copy_kernel(), {})); }

}  // namespace
}  // namespace nxl::kv
