// SPDX-License-Identifier: Apache-2.0
// Two agents of one process, and providers by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "core/error.h"
#include "peer.h"

namespace nxl::kv {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return std::chrono::steady_clock::now() + 5s; }

TEST(Loopback, ReadsTheOtherAgentUntilItIsGone) {
  std::vector<std::byte> theirs(100000), hidden(10), mine(100000);
  fill_pattern(0, theirs);
  TestHost peer("peer"), host;
  uint64_t words[] = {7, 8};
  peer.words = words;
  peer.add(theirs);
  const uint32_t secret = peer.add(hidden, false);
  host.add(mine);
  auto peer_provider = make_provider("loopback", peer);
  auto provider = make_provider("loopback", host);
  ChannelSetup setup;
  setup.advertisement = peer_provider->advertise();
  std::string why;
  auto channel = provider->open(setup, &why);
  ASSERT_TRUE(channel) << why;
  Progress progress;
  const kv::Run run{
      .source_offset = 1, .target_offset = 2, .bytes = 3000, .source_stride = 4000, .target_stride = 3000, .count = 20};
  ASSERT_TRUE(channel->read({&run, 1}, progress, soon()).status.is_ok());
  for (uint64_t i = 0; i < 60000; ++i) ASSERT_EQ(mine[2 + i], pattern(0, 1 + i / 3000 * 4000 + i % 3000)) << i;
  uint64_t word = 0;
  ASSERT_TRUE(channel->read_word(1, &word, soon()).is_ok());
  EXPECT_EQ(word, 8u);

  const kv::Run forbidden{.source_region = secret, .bytes = 1};
  EXPECT_FALSE(channel->read({&forbidden, 1}, progress, soon()).status.is_ok());
  peer.remove(0);
  EXPECT_FALSE(channel->read({&run, 1}, progress, soon()).status.is_ok());
  peer_provider.reset();
  EXPECT_EQ(channel->read({&run, 1}, progress, soon()).cause, Cause::kPeerLost);
  EXPECT_FALSE(channel->read_word(1, &word, soon()).is_ok());
}

TEST(Loopback, HoldsTheRegionsItReadsFrom) {
  std::vector<std::byte> theirs(64 << 20), mine(64 << 20);
  TestHost peer("peer"), host;
  peer.add(theirs);
  host.add(mine);
  const auto peer_provider = make_provider("loopback", peer);
  const auto provider = make_provider("loopback", host);
  ChannelSetup setup;
  setup.advertisement = peer_provider->advertise();
  std::string why;
  const auto channel = provider->open(setup, &why);
  ASSERT_TRUE(channel) << why;
  const std::shared_ptr<const Region> region = peer.regions()->at(0);
  Progress progress;
  const kv::Run run{.bytes = 64 << 20};
  std::atomic<bool> over{false};
  std::atomic<uint32_t> most_held{0};
  std::thread reader([&] {
    while (most_held == 0) EXPECT_TRUE(channel->read({&run, 1}, progress, soon()).status.is_ok());
    over = true;
  });
  while (!over) most_held = std::max(most_held.load(), region->held.load());
  reader.join();
  EXPECT_EQ(most_held.load(), 1u);
  EXPECT_EQ(region->held.load(), 0u);
}

TEST(Loopback, DoesNotReachAnotherProcess) {
  const PeerProcess peer(PeerOptions{.provider = "loopback"});
  TestHost host;
  std::string why;
  EXPECT_FALSE(make_provider("loopback", host)->open(peer.setup(), &why));
  EXPECT_EQ(why, "the peer is another process");
}

TEST(Registry, RefusesAnUnknownName) {
  TestHost host;
  try {
    make_provider("rdma", host);
    FAIL() << "made a provider that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("'rdma'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace nxl::kv
