// SPDX-License-Identifier: Apache-2.0
// What every provider between two processes owes: the right bytes, none beside them, none late, and an end in time.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "core/crc32c.h"
#include "nrt_abi.h"
#include "peer.h"

namespace nxl::kv {
namespace {

using namespace std::chrono_literals;

constexpr std::byte kUntouched{0xA5};

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

struct Kind {
  const char* provider;
  bool checksum = false;
};

class Reading : public testing::TestWithParam<Kind> {
 protected:
  void connect(std::vector<uint64_t> peer_regions, std::vector<uint64_t> own_regions) {
    peer_ = std::make_unique<PeerProcess>(PeerOptions{.regions = peer_regions, .provider = GetParam().provider});
    host_.checksum = GetParam().checksum;
    for (const uint64_t bytes : own_regions) {
      memory_.push_back(std::make_unique<Pool>(bytes));
      std::ranges::fill(memory_.back()->bytes(), kUntouched);
      host_.add(memory_.back()->bytes());
    }
    provider_ = make_provider(GetParam().provider, host_);
    std::string why;
    channel_ = provider_->open(peer_->setup(), &why);
    ASSERT_TRUE(channel_) << why;
    EXPECT_STREQ(channel_->provider(), GetParam().provider);
    for (const auto& [index, region] : *peer_->setup().regions) EXPECT_TRUE(channel_->reaches(*region));
  }

  bool one_sided() const { return channel_->capabilities().one_sided; }
  std::span<std::byte> memory(size_t index) const { return memory_[index]->bytes(); }

  TestHost host_;
  std::vector<std::unique_ptr<Pool>> memory_;
  std::unique_ptr<PeerProcess> peer_;
  std::unique_ptr<Provider> provider_;
  std::unique_ptr<Channel> channel_;
  Progress progress_;
};

// Strided runs at random places of the source whose targets do not overlap.
std::vector<kv::Run> random_runs(std::mt19937_64& random, const std::vector<uint64_t>& source, uint64_t target_bytes,
                                 uint32_t target_region) {
  std::vector<kv::Run> runs;
  for (uint64_t at = random() % 64; at < target_bytes;) {
    const uint64_t limits[] = {40, 600, 6000, 400000};
    kv::Run run{.source_region = static_cast<uint32_t>(random() % source.size()), .target_region = target_region};
    run.bytes = 1 + random() % limits[random() % 4];
    run.count = run.bytes > 6000 ? 1 : 1 + static_cast<uint32_t>(random() % 50);
    run.source_stride = run.bytes + random() % 100;
    run.target_stride = run.bytes + random() % 3 * (random() % 100);
    run.target_offset = at;
    const uint64_t source_extent = run.source_stride * (run.count - 1) + run.bytes;
    const uint64_t target_extent = run.target_stride * (run.count - 1) + run.bytes;
    if (source_extent > source[run.source_region] || target_extent > target_bytes - at) break;
    run.source_offset = random() % (source[run.source_region] - source_extent + 1);
    runs.push_back(run);
    at += target_extent + random() % 64;
  }
  std::ranges::shuffle(runs, random);
  return runs;
}

TEST_P(Reading, RandomStridedRunsEqualTheOracle) {
  const std::vector<uint64_t> source{1 << 20, 3 << 20, 4097};
  const std::vector<uint64_t> own{2 << 20, 5 << 20};
  connect(source, own);
  std::mt19937_64 random(11);
  for (int round = 0; round < 6; ++round) {
    std::vector<kv::Run> runs;
    for (uint32_t region = 0; region < own.size(); ++region) {
      std::ranges::fill(memory(region), kUntouched);
      const auto more = random_runs(random, source, own[region], region);
      runs.insert(runs.end(), more.begin(), more.end());
    }
    std::vector<std::vector<std::byte>> expected;
    for (const uint64_t bytes : own) expected.emplace_back(bytes, kUntouched);
    uint64_t total = 0;
    for (const kv::Run& run : runs) {
      for (uint64_t piece = 0; piece < run.count; ++piece) {
        for (uint64_t i = 0; i < run.bytes; ++i) {
          expected[run.target_region][run.target_offset + piece * run.target_stride + i] =
              pattern(run.source_region, run.source_offset + piece * run.source_stride + i);
        }
      }
      total += run.total_bytes();
    }
    Progress progress;
    const CopyResult result = channel_->read(runs, progress, in(20s));
    ASSERT_TRUE(result.status.is_ok()) << result.status.message;
    EXPECT_EQ(result.cause, Cause::kNone);
    EXPECT_EQ(progress.bytes_done.load(), total);
    for (size_t region = 0; region < own.size(); ++region) {
      ASSERT_TRUE(std::ranges::equal(memory(region), expected[region])) << "round " << round << " region " << region;
    }
  }
}

TEST_P(Reading, SeveralReadsAtOnce) {
  constexpr uint64_t kBytes = 4 << 20;
  connect({kBytes}, {kBytes});
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (uint64_t part = 0; part < 4; ++part) {
    threads.emplace_back([&, part] {
      const uint64_t at = part * kBytes / 4;
      const kv::Run run{.source_offset = at, .target_offset = at, .bytes = kBytes / 4};
      good += channel_->read({&run, 1}, progress_, in(20s)).status.is_ok();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 4);
  EXPECT_EQ(progress_.bytes_done.load(), kBytes);
  std::vector<std::byte> expected(kBytes);
  fill_pattern(0, expected);
  EXPECT_TRUE(std::ranges::equal(memory(0), expected));
}

TEST_P(Reading, NothingToDoIsDone) {
  connect({4096}, {4096});
  EXPECT_TRUE(channel_->read({}, progress_, in(5s)).status.is_ok());
  const kv::Run empty[] = {{.bytes = 0, .count = 5}, {.source_offset = 4096, .bytes = 4096, .count = 0}};
  EXPECT_TRUE(channel_->read(empty, progress_, in(5s)).status.is_ok());
  EXPECT_EQ(progress_.bytes_done.load(), 0u);
  EXPECT_TRUE(std::ranges::all_of(memory(0), [](std::byte byte) { return byte == kUntouched; }));
}

TEST_P(Reading, RunsOutOfBoundsAreRefusedAndTheOnesBeforeAreDone) {
  connect({4096}, {4096});
  const kv::Run good{.bytes = 100};
  const kv::Run bad[] = {{.source_offset = 4096, .bytes = 1},
                         {.target_offset = 4090, .bytes = 7},
                         {.bytes = 1, .source_stride = UINT64_MAX, .count = 3},
                         {.source_region = 9, .bytes = 1},
                         {.target_region = 9, .bytes = 1},
                         {.bytes = UINT64_MAX}};
  for (const kv::Run& run : bad) {
    Progress progress;
    const kv::Run runs[] = {good, run};
    const CopyResult result = channel_->read(runs, progress, in(5s));
    EXPECT_EQ(result.status.code, NRT_INVALID) << result.status.message;
    EXPECT_EQ(result.cause, Cause::kProvider);
    EXPECT_EQ(result.first_failed_run, 1u);
    EXPECT_EQ(progress.bytes_done.load(), 100u);
  }
  const CopyResult after = channel_->read({&good, 1}, progress_, in(5s));
  EXPECT_TRUE(after.status.is_ok()) << after.status.message;
}

TEST_P(Reading, StoppedBeforeItBegins) {
  connect({4096}, {4096});
  progress_.stop = true;
  const kv::Run run{.bytes = 4096};
  EXPECT_EQ(channel_->read({&run, 1}, progress_, in(5s)).cause, Cause::kCancelled);
  Progress late;
  EXPECT_EQ(channel_->read({&run, 1}, late, in(-1ms)).cause, Cause::kDeadline);
  EXPECT_TRUE(std::ranges::all_of(memory(0), [](std::byte byte) { return byte == kUntouched; }));
}

TEST_P(Reading, NoByteLandsAfterAStoppedReadReturned) {
  constexpr uint64_t kBytes = 64 << 20;
  connect({kBytes}, {kBytes});
  std::vector<kv::Run> runs;
  for (uint64_t at = 0; at < kBytes; at += 4096)
    runs.push_back({.source_offset = at, .target_offset = at, .bytes = 4096});
  for (const auto patience : {0us, 300us, 2000us}) {
    std::ranges::fill(memory(0), kUntouched);
    Progress progress;
    std::thread stopper([&] {
      while (progress.bytes_done.load() == 0) std::this_thread::yield();
      std::this_thread::sleep_for(patience);
      progress.stop = true;
    });
    const CopyResult result = channel_->read(runs, progress, in(20s));
    const uint32_t at_return = crc32c(memory(0));
    const uint64_t done = progress.bytes_done.load();
    stopper.join();
    std::this_thread::sleep_for(30ms);
    EXPECT_EQ(crc32c(memory(0)), at_return);
    EXPECT_EQ(progress.bytes_done.load(), done);
    if (!result.status.is_ok()) {
      EXPECT_EQ(result.cause, Cause::kCancelled);
      EXPECT_LT(done, kBytes);
      EXPECT_LE(result.first_failed_run * 4096, done);
      EXPECT_EQ(memory(0)[kBytes - 1], kUntouched);
    }
  }
  // The channel is as good as before.
  Progress progress;
  ASSERT_TRUE(channel_->read(runs, progress, in(20s)).status.is_ok());
  EXPECT_EQ(memory(0)[kBytes - 1], pattern(0, kBytes - 1));
}

TEST_P(Reading, PeerKilledInTheMiddle) {
  constexpr uint64_t kBytes = 64 << 20;
  connect({kBytes}, {kBytes});
  const kv::Run run{.bytes = kBytes};
  std::atomic<bool> killed{false};
  std::thread killer([&] {
    while (progress_.bytes_done.load() == 0) std::this_thread::yield();
    peer_->kill(SIGKILL);
    killed = true;
  });
  CopyResult result;
  do {
    result = channel_->read({&run, 1}, progress_, in(20s));
  } while (result.status.is_ok() && !killed);
  killer.join();
  if (GetParam().provider == std::string("shm")) {
    // The memory lives as long as it is mapped: a read gives the peer's last bytes, and the agent ends the session.
    EXPECT_TRUE(channel_->read({&run, 1}, progress_, in(20s)).status.is_ok());
    EXPECT_EQ(memory(0)[kBytes - 1], pattern(0, kBytes - 1));
    return;
  }
  result = channel_->read({&run, 1}, progress_, in(20s));
  EXPECT_FALSE(result.status.is_ok());
  if (GetParam().provider == std::string("cma")) {
    EXPECT_EQ(result.cause, Cause::kPeerLost) << result.status.message;
  }
  uint64_t word = 0;
  EXPECT_FALSE(channel_->read_word(0, &word, in(5s)).is_ok());
}

TEST_P(Reading, StoppedPeer) {
  connect({1 << 20}, {1 << 20});
  const kv::Run run{.bytes = 1 << 20};
  ASSERT_TRUE(channel_->read({&run, 1}, progress_, in(5s)).status.is_ok());
  peer_->kill(SIGSTOP);
  const CopyResult result = channel_->read({&run, 1}, progress_, in(150ms));
  if (one_sided()) {
    EXPECT_TRUE(result.status.is_ok()) << result.status.message;
  } else {
    EXPECT_EQ(result.status.code, NRT_TIMEOUT);
    EXPECT_EQ(result.cause, Cause::kDeadline);
  }
  peer_->kill(SIGCONT);
  const CopyResult after = channel_->read({&run, 1}, progress_, in(10s));
  EXPECT_TRUE(after.status.is_ok()) << after.status.message;
}

TEST_P(Reading, LeaseWords) {
  connect({4096}, {4096});
  uint64_t word = 0;
  ASSERT_TRUE(channel_->read_word(3, &word, in(5s)).is_ok());
  EXPECT_EQ(word, 4u);
  peer_->set_word(3, 0xfeedfacecafebeef);
  ASSERT_TRUE(channel_->read_word(3, &word, in(5s)).is_ok());
  EXPECT_EQ(word, 0xfeedfacecafebeef);
  word = 1;
  // No such word: an error, or 0 where the peer answers. Never the generation of a lease.
  const bool answered = channel_->read_word(1 << 20, &word, in(5s)).is_ok();
  EXPECT_TRUE(!answered || word == 0);
}

TEST_P(Reading, AfterShutDownNothingIsRead) {
  connect({4096}, {4096});
  channel_->shut_down();
  const kv::Run run{.bytes = 4096};
  const CopyResult result = channel_->read({&run, 1}, progress_, in(5s));
  EXPECT_EQ(result.cause, Cause::kPeerLost);
  uint64_t word = 0;
  EXPECT_FALSE(channel_->read_word(0, &word, in(5s)).is_ok());
  EXPECT_TRUE(std::ranges::all_of(memory(0), [](std::byte byte) { return byte == kUntouched; }));
}

TEST_P(Reading, RegionsThatJoinAndLeave) {
  connect({4096, 8192}, {8192});
  auto fewer = std::make_shared<RemoteRegionMap>(*peer_->setup().regions);
  fewer->erase(1);
  channel_->set_peer_regions(fewer);
  const kv::Run run{.source_region = 1, .bytes = 8192};
  EXPECT_FALSE(channel_->read({&run, 1}, progress_, in(5s)).status.is_ok());
  channel_->set_peer_regions(peer_->setup().regions);
  EXPECT_TRUE(channel_->read({&run, 1}, progress_, in(5s)).status.is_ok());
  EXPECT_EQ(memory(0)[8191], pattern(1, 8191));
}

INSTANTIATE_TEST_SUITE_P(Providers, Reading, testing::Values(Kind{"shm"}, Kind{"cma"}, Kind{"tcp"}, Kind{"tcp", true}),
                         [](const auto& info) {
                           return std::string(info.param.provider) + (info.param.checksum ? "_checksum" : "");
                         });

}  // namespace
}  // namespace nxl::kv
