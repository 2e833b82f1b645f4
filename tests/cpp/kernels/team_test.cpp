// SPDX-License-Identifier: Apache-2.0
// A team covers all of its work once, whoever does it, and ends with its thread.
#include "host/kernels/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace nxl::host {
namespace {

TEST(Team, CoversEveryElementOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    for (const int64_t total : {0, 1, 2, 7, 64, 1001}) {
      for (const int64_t piece : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> times(static_cast<size_t>(total));
        Team::of_this_thread().share(threads, total, piece, [&](int64_t begin, int64_t end) noexcept {
          for (int64_t i = begin; i < end; ++i) times[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const std::atomic<int>& count : times)
          ASSERT_EQ(count.load(), 1) << threads << " " << total << " " << piece;
      }
    }
  }
}

TEST(Team, ResultsOfHelpersAreVisibleToTheCaller) {
  Team& team = Team::of_this_thread();
  std::vector<int64_t> values(4096);
  for (int64_t round = 0; round < 2000; ++round) {
    team.share(3, static_cast<int64_t>(values.size()), 64, [&](int64_t begin, int64_t end) noexcept {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] = round + i;
    });
    for (size_t i = 0; i < values.size(); i += 511) ASSERT_EQ(values[i], round + static_cast<int64_t>(i));
  }
}

TEST(Team, HelpersWakeAfterSleep) {
  Team team;
  std::atomic<bool> helped{false};
  const auto caller = std::this_thread::get_id();
  // Long enough pieces that a helper gets one; the pause is longer than helpers spin.
  for (int round = 0; round < 200 && !helped; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    team.share(2, 8, 1, [&](int64_t, int64_t) noexcept {
      if (std::this_thread::get_id() != caller) helped = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  EXPECT_TRUE(helped);
}

TEST(Team, NoMoreHelpersThanAskedFor) {
  Team team;
  team.share(5, 64, 1, [](int64_t, int64_t) noexcept { std::this_thread::yield(); });
  for (int round = 0; round < 50; ++round) {
    std::mutex mutex;
    std::set<std::thread::id> seen;
    team.share(2, 64, 1, [&](int64_t, int64_t) noexcept {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    ASSERT_LE(seen.size(), 2u);
  }
}

TEST(Team, SeveralThreadsHaveTeamsOfTheirOwn) {
  std::vector<std::thread> threads;
  std::atomic<int64_t> sum{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        Team::of_this_thread().share(2, 100, 10, [&](int64_t begin, int64_t end) noexcept { sum += end - begin; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum.load(), 4 * 200 * 100);
}

}  // namespace
}  // namespace nxl::host
