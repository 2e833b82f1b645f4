// SPDX-License-Identifier: Apache-2.0
// What a transfer that broke off leaves: which tokens are in place, and the times of its stages.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/nrt_codes.h"
#include "kv/reader.h"

namespace nxl::kv {
namespace {

using namespace test;  // NOLINT: a test program of its own

constexpr uint32_t kLayers = 2, kParts = 2, kTokens = 4, kBlocks = 16;
constexpr uint64_t kTokenBytes = 1024;  // of one layer and part
constexpr uint64_t kBlockBytes = kTokens * kTokenBytes;

KvLayout layout() {
  KvLayout layout;
  layout.dtype = "float32";
  layout.element_bytes = 4;
  layout.head_dim = 128;
  layout.total_heads = 2;
  layout.total_layers = layout.layer_count = kLayers;
  layout.block_tokens = kTokens;
  layout.block_count = kBlocks;
  for (uint64_t i = 0; i < kLayers * kParts; ++i) {
    layout.slots.push_back({0, i * kBlocks * kBlockBytes, kBlockBytes, kTokenBytes, kTokenBytes / 2});
  }
  layout.region_bytes = {kBytes};
  return layout;
}

// Two agents of this process with the same layout; the second one's channels break as `faults` says.
struct Pair {
  explicit Pair(const FaultPlan& faults, const FaultPlan& producer_faults = {}, uint32_t threads = 1)
      : producer({.faults = producer_faults, .more = [](AgentConfig& c) { c.name = "prefill"; }}),
        reader({.faults = faults, .more = [threads](AgentConfig& c) { c.copy_threads = threads; }}) {
    fill(producer.memory.span(), 3);
    producer.agent->describe_kv(layout(), std::vector{producer.region});
    reader.agent->describe_kv(layout(), std::vector{reader.region});
    peer = reader.agent->connect(producer.agent->endpoint(), kLong);
    for (uint32_t i = 0; i < 8; ++i) ours.push_back(i), theirs.push_back(15 - i);
  }
  // True when `token` is in place in all layers.
  bool in_place(uint64_t token) const {
    for (uint64_t slot = 0; slot < kLayers * kParts; ++slot) {
      const auto at = [&](uint32_t block) {
        return slot * kBlocks * kBlockBytes + block * kBlockBytes + token % kTokens * kTokenBytes;
      };
      const std::byte* got = reader.memory.data + at(ours[token / kTokens]);
      if (!std::equal(got, got + kTokenBytes, producer.memory.data + at(theirs[token / kTokens]))) return false;
    }
    return true;
  }
  TransferStatus finished(TransferId id) const {
    reader.agent->wait(id, kLong);
    EXPECT_TRUE(eventually([&] { return reader.agent->check(id).quiesced; }));
    return reader.agent->check(id);
  }

  Reader producer, reader;
  PeerId peer = 0;
  std::vector<uint32_t> ours, theirs;
};

FaultPlan failing_at(uint64_t run) {
  FaultPlan plan;
  plan.fail_at_run = run;
  return plan;
}

std::vector<std::pair<uint64_t, uint64_t>> failed(const TransferStatus& status) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const TokenRange& range : status.failed_tokens) ranges.emplace_back(range.begin, range.end);
  return ranges;
}
using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

TEST(FailedTokens, AreThoseWhoseRunsDidNotArrive) {
  Pair pair(failing_at(4 * 3 + 2));  // four runs to a block: the fourth block is half there
  const TransferId id = pair.reader.agent->prepare_kv_read(pair.peer, {0, 32}, {pair.theirs, 0}, {pair.ours, 0}, {});
  ASSERT_TRUE(pair.reader.agent->post(id, kLong, "").is_ok());
  const TransferStatus status = pair.finished(id);
  EXPECT_EQ(status.cause, Cause::kProvider);
  EXPECT_EQ(failed(status), (Ranges{{12, 32}}));
  for (uint64_t token = 0; token < 12; ++token) EXPECT_TRUE(pair.in_place(token)) << token;
  EXPECT_FALSE(pair.in_place(31));
}

TEST(FailedTokens, OfALeasedReadNeedAValidLease) {
  Pair pair(failing_at(4 * 5));
  const LeaseTicket ticket = pair.producer.agent->grant("r", pair.theirs, std::vector<std::string>{"decode"}, kLong);
  const auto read = [&] {
    const TransferId id =
        pair.reader.agent->prepare_kv_read(pair.peer, ticket, {1, 30}, {pair.theirs, 0}, {pair.ours, 0}, {});
    EXPECT_TRUE(pair.reader.agent->post(id, kLong, "").is_ok());
    return pair.finished(id);
  };
  EXPECT_EQ(failed(read()), (Ranges{{20, 30}}));
  ASSERT_TRUE(pair.producer.agent->release_lease(ticket.id, "").is_ok());
  const TransferStatus late = read();
  EXPECT_EQ(late.cause, Cause::kLeaseExpired);
  EXPECT_EQ(failed(late), (Ranges{{1, 30}}));
}

TEST(FailedTokens, OfAWriteAreToldByTheTarget) {
  Pair pair({}, failing_at(4 * 2 + 1));
  const TransferId id = pair.reader.agent->prepare_kv_write(pair.peer, {0, 32}, {pair.ours, 0}, {pair.theirs, 0});
  ASSERT_TRUE(pair.reader.agent->post(id, kLong, "").is_ok());
  EXPECT_EQ(failed(pair.finished(id)), (Ranges{{8, 32}}));
}

TEST(FailedTokens, ShrinkOnceALateCopyHasStopped) {
  Pair pair(slow(milliseconds(25)));
  const TransferId id = pair.reader.agent->prepare_kv_read(pair.peer, {0, 32}, {pair.theirs, 0}, {pair.ours, 0}, {});
  ASSERT_TRUE(pair.reader.agent->post(id, milliseconds(400), "").is_ok());
  const TransferStatus status = pair.finished(id);
  EXPECT_EQ(status.cause, Cause::kDeadline);
  ASSERT_EQ(status.failed_tokens.size(), 1u);
  EXPECT_EQ(status.failed_tokens[0].end, 32u);
  for (uint64_t token = 0; token < status.failed_tokens[0].begin; ++token) EXPECT_TRUE(pair.in_place(token)) << token;
  // Posted again: whatever the first post said is forgotten.
  ASSERT_TRUE(pair.reader.agent->post(id, milliseconds(1), "").is_ok());
  EXPECT_EQ(pair.finished(id).failed_tokens.at(0).end, 32u);
}

TEST(FailedTokens, HaveHolesBetweenCopyThreads) {
  const std::vector<TokenShare> shares{{{4, 8}, 100}, {{8, 12}, 200}, {{12, 16}, 300}, {{16, 20}, 400}};
  const auto of = [&](std::vector<ByteRange> missing) {
    Ranges ranges;
    for (const TokenRange& range : tokens_of(shares, missing)) ranges.emplace_back(range.begin, range.end);
    return ranges;
  };
  EXPECT_EQ(of({{0, 400}}), (Ranges{{4, 20}}));
  EXPECT_EQ(of({{300, 400}, {50, 60}}), (Ranges{{4, 8}, {16, 20}}));
  EXPECT_EQ(of({{99, 101}}), (Ranges{{4, 12}}));
  EXPECT_EQ(of({{100, 100}}), (Ranges{}));
  EXPECT_EQ(of({{400, 400}}), (Ranges{}));
}

TEST(Times, TellTheAcknowledgement) {
  Pair pair({});
  const TransferId read = pair.reader.agent->prepare_kv_read(pair.peer, {0, 32}, {pair.theirs, 0}, {pair.ours, 0}, {});
  ASSERT_TRUE(pair.reader.agent->post(read, kLong, "read").is_ok());
  EXPECT_EQ(pair.finished(read).state, TransferState::kDone);
  EXPECT_TRUE(eventually([&] { return pair.reader.agent->times(read).ack > 0; }));
  EXPECT_EQ(pair.reader.agent->times(read).flush, 0);  // copies between mappings need none

  const TransferId write = pair.reader.agent->prepare_kv_write(pair.peer, {0, 32}, {pair.ours, 0}, {pair.theirs, 0});
  ASSERT_TRUE(pair.reader.agent->post(write, kLong, "").is_ok());
  EXPECT_EQ(pair.finished(write).state, TransferState::kDone);
  const TransferTimes times = pair.reader.agent->times(write);
  EXPECT_GT(times.ack, 0);
  EXPECT_GT(times.wire, 0);
  EXPECT_GE(times.total, times.wire);
  const std::string text = pair.reader.agent->prometheus();
  EXPECT_NE(text.find("nxl_kv_ack_seconds_count{agent=\"decode\",op=\"read\"} 1"), std::string::npos) << text;
  EXPECT_NE(text.find("nxl_kv_ack_seconds_count{agent=\"decode\",op=\"write\"} 1"), std::string::npos);
  EXPECT_NE(text.find("nxl_kv_flush_seconds_count{agent=\"decode\",op=\"read\"} 1"), std::string::npos);
}

TEST(Drain, IsOverWithResume) {
  Pair pair({});
  Agent& agent = *pair.reader.agent;
  const TransferId id = agent.prepare_kv_read(pair.peer, {0, 32}, {pair.theirs, 0}, {pair.ours, 0}, {});
  ASSERT_TRUE(agent.drain(kLong).is_ok());
  EXPECT_EQ(agent.post(id, kLong, "").code, kNrtClosed);
  std::string why;
  EXPECT_FALSE(agent.healthy(&why));
  EXPECT_NE(why.find("drains"), std::string::npos) << why;
  EXPECT_NE(agent.prometheus().find("nxl_kv_draining{agent=\"decode\"} 1"), std::string::npos);
  // A WRITE of the peer is refused meanwhile; its READs go on.
  const PeerId back = pair.producer.agent->find_peer("decode");
  ASSERT_TRUE(eventually([&] { return pair.producer.agent->peer_state(back, nullptr) == PeerState::kUp; }));
  const TransferId write =
      pair.producer.agent->prepare_write(back, {{pair.producer.region, pair.reader.region, 0, 0, 64, 0, 0, 1}});
  ASSERT_TRUE(pair.producer.agent->post(write, kLong, "").is_ok());
  EXPECT_EQ(pair.producer.agent->wait(write, kLong).cause, Cause::kRefused);
  agent.resume();
  EXPECT_TRUE(agent.healthy(&why)) << why;
  ASSERT_TRUE(agent.post(id, kLong, "").is_ok());
  EXPECT_EQ(agent.wait(id, kLong).state, TransferState::kDone);
  ASSERT_TRUE(pair.producer.agent->post(write, kLong, "").is_ok());
  EXPECT_EQ(pair.producer.agent->wait(write, kLong).state, TransferState::kDone);
}

}  // namespace
}  // namespace nxl::kv
