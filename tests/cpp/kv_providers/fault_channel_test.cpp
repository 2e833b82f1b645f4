// SPDX-License-Identifier: Apache-2.0
// Injected faults do what they say, and keep the promise that nothing lands after read() returned.
#include "kv/providers/fault_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "nrt_abi.h"
#include "peer.h"

namespace nxl::kv {
namespace {

using namespace std::chrono_literals;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

class Faults : public testing::Test {
 protected:
  Faults() {
    fill_pattern(0, theirs_);
    peer_.words = words_;
    peer_.add(theirs_);
    host_.add(mine_);
    for (uint64_t i = 0; i < runs_.size(); ++i) runs_[i] = {0, 0, i * 1000, i * 1000, 500, 500, 500, 2};
  }

  void inject(const FaultPlan& plan) {
    auto provider =
        make_fault_provider(make_provider("loopback", host_), host_, std::make_shared<const FaultPlan>(plan));
    peer_provider_ = make_provider("loopback", peer_);
    ChannelSetup setup;
    setup.advertisement = peer_provider_->advertise();
    std::string why;
    channel_ = provider->open(setup, &why);
    ASSERT_TRUE(channel_) << why;
    EXPECT_STREQ(provider->name(), "loopback");
    std::ranges::fill(mine_, std::byte{0});
    progress_.bytes_done = 0;
    progress_.stop = false;
  }

  bool arrived(uint64_t begin, uint64_t end) const {
    return std::equal(mine_.begin() + static_cast<ptrdiff_t>(begin), mine_.begin() + static_cast<ptrdiff_t>(end),
                      theirs_.begin() + static_cast<ptrdiff_t>(begin));
  }
  bool untouched(uint64_t begin) const {
    return std::all_of(mine_.begin() + static_cast<ptrdiff_t>(begin), mine_.end(),
                       [](std::byte byte) { return byte == std::byte{0}; });
  }

  std::vector<std::byte> theirs_ = std::vector<std::byte>(8000), mine_ = std::vector<std::byte>(8000);
  uint64_t words_[2] = {5, 6};
  TestHost peer_{"peer"}, host_;
  std::unique_ptr<Provider> peer_provider_;
  std::unique_ptr<Channel> channel_;
  std::vector<kv::Run> runs_ = std::vector<kv::Run>(8);
  Progress progress_;
};

TEST_F(Faults, NoneIsTransparent) {
  inject({});
  EXPECT_TRUE(channel_->read(runs_, progress_, in(5s)).status.is_ok());
  EXPECT_TRUE(arrived(0, 8000));
  EXPECT_EQ(progress_.bytes_done.load(), 8000u);
}

TEST_F(Faults, FailureAtARun) {
  inject({.fail_at_run = 3, .fail_with = Cause::kRefused});
  const CopyResult result = channel_->read(runs_, progress_, in(5s));
  EXPECT_EQ(result.cause, Cause::kRefused);
  EXPECT_EQ(result.first_failed_run, 3u);
  EXPECT_TRUE(arrived(0, 3000));
  EXPECT_TRUE(untouched(3000));
}

TEST_F(Faults, WrongSize) {
  inject({.wrong_size = true});
  const CopyResult result = channel_->read(runs_, progress_, in(5s));
  EXPECT_EQ(result.cause, Cause::kIntegrity);
  EXPECT_EQ(result.first_failed_run, 7u);
  EXPECT_TRUE(arrived(0, 7999));
  EXPECT_TRUE(untouched(7999));
  inject({.lie_about_size = true});
  EXPECT_TRUE(channel_->read(runs_, progress_, in(5s)).status.is_ok());
  EXPECT_EQ(progress_.bytes_done.load(), 7999u);
  EXPECT_TRUE(untouched(7999));
}

TEST_F(Faults, Corruption) {
  inject({.corrupt = true});
  EXPECT_TRUE(channel_->read(runs_, progress_, in(5s)).status.is_ok());
  EXPECT_EQ(mine_[0], ~theirs_[0]);
  EXPECT_TRUE(arrived(1, 8000));
}

TEST_F(Faults, OnlyTheNthRead) {
  inject({.nth_read = 2, .fail_at_run = 0});
  EXPECT_TRUE(channel_->read(runs_, progress_, in(5s)).status.is_ok());
  EXPECT_EQ(channel_->read(runs_, progress_, in(5s)).cause, Cause::kProvider);
  EXPECT_TRUE(channel_->read(runs_, progress_, in(5s)).status.is_ok());
}

TEST_F(Faults, ADroppedReadEndsAtTheDeadlineOrAtStop) {
  inject({.drop = true});
  EXPECT_EQ(channel_->read(runs_, progress_, in(30ms)).cause, Cause::kDeadline);
  std::thread stopper([&] {
    std::this_thread::sleep_for(20ms);
    progress_.stop = true;
  });
  EXPECT_EQ(channel_->read(runs_, progress_, in(20s)).cause, Cause::kCancelled);
  stopper.join();
  EXPECT_TRUE(untouched(0));
}

TEST_F(Faults, SlowRunsStopInBetween) {
  inject({.delay = 1ms, .run_delay = 15ms});
  const CopyResult result = channel_->read(runs_, progress_, in(60ms));
  EXPECT_EQ(result.cause, Cause::kDeadline);
  EXPECT_EQ(progress_.bytes_done.load(), result.first_failed_run * 1000);
  EXPECT_TRUE(untouched(result.first_failed_run * 1000));
}

TEST_F(Faults, LeaseWords) {
  inject({.fail_word = 2});
  uint64_t word = 0;
  EXPECT_TRUE(channel_->read_word(1, &word, in(5s)).is_ok());
  EXPECT_EQ(word, 6u);
  EXPECT_FALSE(channel_->read_word(1, &word, in(5s)).is_ok());
  EXPECT_TRUE(channel_->read_word(1, &word, in(5s)).is_ok());
  inject({.lose_words = true});
  EXPECT_TRUE(channel_->read_word(1, &word, in(5s)).is_ok());
  EXPECT_EQ(word, 0u);
}

}  // namespace
}  // namespace nxl::kv
