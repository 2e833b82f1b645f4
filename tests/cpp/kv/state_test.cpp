// SPDX-License-Identifier: Apache-2.0
// The parts of an agent that have no threads: leases, the life of a transfer, notifications, cutting and checking runs.
#include <gtest/gtest.h>

#include "core/error.h"
#include "kv/lease_table.h"
#include "kv/notifications.h"
#include "kv/nrt_codes.h"
#include "kv/region_table.h"
#include "kv/run_parts.h"
#include "kv/transfer.h"

namespace nxl::kv {
namespace {

using std::chrono::milliseconds;
using Effect = TransferMachine::Effect;
using Finish = LeaseTable::Finish;

const LeaseTable::Time kStart{};
const std::vector<uint32_t> kBlocks{3, 1, 4};

TEST(Lease, EndsWhenEveryNamedReaderHasFinished) {
  LeaseTable table(8);
  const LeaseTicket t = table.grant("r", kBlocks, std::vector<std::string>{"a", "b"}, milliseconds(100), kStart);
  EXPECT_EQ(table.word(t.word), t.generation);
  EXPECT_EQ(table.finish(t.id, t.key, "stranger"), Finish::kNotAReader);
  EXPECT_EQ(table.finish(t.id, {1, 1}, "a"), Finish::kWrongKey);
  EXPECT_EQ(table.finish(t.id, t.key, "a"), Finish::kCounted);
  EXPECT_EQ(table.finish(t.id, t.key, "a"), Finish::kRepeated);
  EXPECT_EQ(table.word(t.word), t.generation);
  EXPECT_TRUE(table.poll(9).empty());
  EXPECT_EQ(table.finish(t.id, t.key, "b"), Finish::kEnded);
  EXPECT_NE(table.word(t.word), t.generation);
  EXPECT_EQ(table.finish(t.id, t.key, "b"), Finish::kUnknown);
  const auto events = table.poll(9);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].end, LeaseEnd::kRead);
  EXPECT_EQ(events[0].blocks, kBlocks);
  EXPECT_TRUE(table.poll(9).empty());
}

TEST(Lease, ExpiresBehindLiveOnesAndStaysExpired) {
  LeaseTable table(8);
  const std::vector<std::string> readers{"a"};
  const LeaseTicket lasting = table.grant("long", kBlocks, readers, milliseconds(1000), kStart);
  const LeaseTicket brief = table.grant("short", kBlocks, readers, milliseconds(10), kStart);
  EXPECT_EQ(table.next_expiry(), kStart + milliseconds(10));
  EXPECT_EQ(table.expire(kStart + milliseconds(9)), 0u);
  EXPECT_EQ(table.expire(kStart + milliseconds(10)), 1u);
  EXPECT_EQ(table.word(lasting.word), lasting.generation);
  EXPECT_NE(table.word(brief.word), brief.generation);
  EXPECT_EQ(table.renew(brief.id, milliseconds(50), kStart).code, kNrtInvalidHandle);
  EXPECT_TRUE(table.renew(lasting.id, milliseconds(5000), kStart + milliseconds(900)).is_ok());
  EXPECT_EQ(table.expire(kStart + milliseconds(2000)), 0u);
  EXPECT_EQ(table.renew(lasting.id, milliseconds(50), kStart + milliseconds(6000)).code, kNrtInvalidHandle);
  EXPECT_EQ(table.counts().expired, 2u);
  EXPECT_FALSE(table.next_expiry());
}

TEST(Lease, ReleaseIsIdempotentAndWordsNeverRepeat) {
  LeaseTable table(1);
  const std::vector<std::string> readers{"a"};
  std::set<uint64_t> generations;
  for (int i = 0; i < 100; ++i) {
    const LeaseTicket t = table.grant("r", kBlocks, readers, milliseconds(10), kStart);
    EXPECT_TRUE(generations.insert(t.generation).second);
    EXPECT_THROW(table.grant("second", kBlocks, readers, milliseconds(10), kStart), Error);
    EXPECT_TRUE(table.release(t.id, "why").is_ok());
    EXPECT_TRUE(table.release(t.id, "again").is_ok());
    EXPECT_FALSE(generations.contains(table.word(t.word)));
  }
  EXPECT_EQ(table.release(12345, "").code, kNrtInvalidHandle);
  EXPECT_EQ(table.poll(1000).size(), 100u);
  EXPECT_EQ(table.word(99999), 0u);
  EXPECT_THROW(table.grant("none", kBlocks, {}, milliseconds(10), kStart), Error);
}

TransferMachine active() {
  TransferMachine m;
  EXPECT_TRUE(m.post());
  EXPECT_TRUE(m.begin());
  return m;
}

TEST(TransferMachine, DoneOnlyFromActiveAndOnlyOnce) {
  TransferMachine m = active();
  EXPECT_FALSE(m.quiesced());
  EXPECT_FALSE(m.post());
  EXPECT_EQ(m.moved(Status::ok(), Cause::kNone), Effect::kEnded);
  EXPECT_EQ(m.state(), TransferState::kDone);
  EXPECT_EQ(m.stop(Cause::kCancelled, ""), Effect::kNone);
  EXPECT_EQ(m.stop(Cause::kPeerLost, ""), Effect::kNone);
  EXPECT_EQ(m.state(), TransferState::kDone);
  EXPECT_TRUE(m.post());
  EXPECT_EQ(m.state(), TransferState::kPosted);
}

TEST(TransferMachine, ADeadlineEndsItBeforeItIsQuiesced) {
  TransferMachine m = active();
  EXPECT_EQ(m.stop(Cause::kDeadline, "late"), Effect::kEnded);
  EXPECT_EQ(m.state(), TransferState::kFailed);
  EXPECT_FALSE(m.quiesced());
  EXPECT_FALSE(m.post());
  EXPECT_EQ(m.stop(Cause::kPeerLost, ""), Effect::kNone);
  EXPECT_EQ(m.moved(Status::ok(), Cause::kNone), Effect::kNone);
  EXPECT_TRUE(m.quiesced());
  EXPECT_EQ(m.cause(), Cause::kDeadline);
}

TEST(TransferMachine, CancelWaitsForTheCopyAndKeepsItsCause) {
  TransferMachine m = active();
  EXPECT_EQ(m.stop(Cause::kCancelled, ""), Effect::kStopping);
  EXPECT_EQ(m.stop(Cause::kCancelled, ""), Effect::kNone);
  EXPECT_EQ(m.state(), TransferState::kCancelling);
  EXPECT_EQ(m.moved(Status::ok(), Cause::kNone), Effect::kEnded);
  EXPECT_EQ(m.state(), TransferState::kCancelled);
  TransferMachine stuck = active();
  stuck.stop(Cause::kCancelled, "");
  EXPECT_EQ(stuck.stop(Cause::kDeadline, ""), Effect::kEnded);
  EXPECT_EQ(stuck.state(), TransferState::kCancelled);
  EXPECT_EQ(stuck.cause(), Cause::kCancelled);
  EXPECT_FALSE(stuck.quiesced());
}

TEST(TransferMachine, BeforeItBeganNothingHasToComeToRest) {
  TransferMachine prepared;
  EXPECT_EQ(prepared.stop(Cause::kPeerLost, ""), Effect::kNone);
  EXPECT_EQ(prepared.stop(Cause::kCancelled, ""), Effect::kEnded);
  TransferMachine posted;
  posted.post();
  EXPECT_EQ(posted.stop(Cause::kDeadline, ""), Effect::kEnded);
  EXPECT_TRUE(posted.quiesced());
  EXPECT_FALSE(posted.begin());
}

TEST(TransferMachine, AFailureWithoutACauseIsTheProviders) {
  TransferMachine m = active();
  m.moved({1, "broken"}, Cause::kNone);
  EXPECT_EQ(m.cause(), Cause::kProvider);
  EXPECT_EQ(m.message(), "broken");
}

TEST(Outbox, SendsAgainWhatIsNotAcknowledged) {
  Outbox box(1 << 20);
  const Outbox::Time now = std::chrono::steady_clock::now();
  box.push(NotifyKind::kMessage, "1");
  box.push(NotifyKind::kMessage, "2");
  EXPECT_EQ(box.due(now, milliseconds(100)).size(), 2u);
  EXPECT_TRUE(box.due(now, milliseconds(100)).empty());
  box.push(NotifyKind::kMessage, "3");
  EXPECT_EQ(box.due(now, milliseconds(100)).size(), 1u);
  box.acknowledge(2);
  EXPECT_EQ(box.size(), 1u);
  const auto again = box.due(std::chrono::steady_clock::now() + milliseconds(200), milliseconds(100));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].payload, "3");
  box.new_session();
  EXPECT_EQ(box.due(now, milliseconds(100)).size(), 1u);
  EXPECT_EQ(box.restart(), 1u);
  box.push(NotifyKind::kMessage, "4");
  EXPECT_EQ(box.due(now, milliseconds(100))[0].sequence, 1u);
}

TEST(Outbox, IsBounded) {
  Outbox box(1000);
  int taken = 0;
  while (box.push(NotifyKind::kMessage, std::string(100, 'x'))) ++taken;
  EXPECT_EQ(taken, 6);
  box.acknowledge(1);
  EXPECT_TRUE(box.push(NotifyKind::kMessage, ""));
}

TEST(InboxStream, TakesEachOnceAndInOrder) {
  InboxStream stream;
  const Key first{1, 1}, second{2, 2};
  EXPECT_EQ(stream.arrive(first, 2), InboxStream::Arrival::kGap);
  EXPECT_EQ(stream.arrive(first, 1), InboxStream::Arrival::kNew);
  stream.accept(first, 1);
  EXPECT_EQ(stream.arrive(first, 1), InboxStream::Arrival::kRepeated);
  EXPECT_EQ(stream.arrive(second, 1), InboxStream::Arrival::kNew);
}

TEST(SplitRuns, CoversEveryByteOnce) {
  const std::vector<kv::Run> runs{
      {0, 0, 0, 0, 4096, 8192, 4096, 100}, {0, 1, 0, 0, 1 << 18, 0, 0, 1}, {1, 2, 64, 64, 128, 0, 0, 1}};
  uint64_t bytes = 0;
  for (const kv::Run& run : runs) bytes += run.total_bytes();
  for (size_t count = 1; count <= 9; ++count) {
    const auto parts = split_runs(runs, bytes, count);
    EXPECT_LE(parts.size(), count);
    std::map<std::pair<uint32_t, uint64_t>, std::pair<uint32_t, uint64_t>>
        pieces;  // lines of 64 bytes, target to source
    uint64_t total = 0;
    for (const auto& part : parts) {
      for (const kv::Run& run : part) {
        total += run.total_bytes();
        for (uint32_t i = 0; i < run.count; ++i) {
          for (uint64_t word = 0; word < run.bytes; word += 64) {
            const std::pair target{run.target_region, run.target_offset + i * run.target_stride + word};
            const std::pair source{run.source_region, run.source_offset + i * run.source_stride + word};
            EXPECT_TRUE(pieces.emplace(target, source).second);
          }
        }
      }
    }
    EXPECT_EQ(total, bytes) << count;
    EXPECT_EQ((pieces[{0, 5 * 4096 + 64}]), (std::pair<uint32_t, uint64_t>(0, 5 * 8192 + 64)));
    EXPECT_EQ((pieces[{1, 128 * 1024}]), (std::pair<uint32_t, uint64_t>(0, 128 * 1024)));
  }
}

class Runs : public ::testing::Test {
 protected:
  Runs() {
    auto region = std::make_shared<Region>();
    region->description.bytes = 1000;
    local.emplace(0, region);
    auto there = std::make_shared<RemoteRegion>();
    there->bytes = 500;
    there->readable = true;
    remote.emplace(0, there);
  }
  std::string check(const kv::Run& run, bool read = true) {
    std::vector<uint32_t> here, there;
    try {
      check_runs(std::vector{run}, local, remote, read, "peer", here, there);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  RegionMap local;
  RemoteRegionMap remote;
};

TEST_F(Runs, StayInsideTheirRegions) {
  EXPECT_EQ(check({0, 0, 0, 500, 500, 0, 0, 1}), "");
  EXPECT_NE(check({0, 0, 1, 500, 500, 0, 0, 1}).find("leaves the source region of 500"), std::string::npos);
  EXPECT_NE(check({0, 0, 0, 501, 500, 0, 0, 1}).find("leaves the target region of 1000"), std::string::npos);
  EXPECT_NE(check({0, 0, 0, 0, 8, UINT64_MAX / 2, 8, 4}).find("leaves the source"), std::string::npos);
  EXPECT_NE(check({0, 0, UINT64_MAX, 0, 8, 0, 0, 1}).find("leaves the source"), std::string::npos);
  EXPECT_NE(check({0, 0, 0, 0, 8, 8, 4, 2}).find("overlap"), std::string::npos);
  EXPECT_NE(check({0, 0, 0, 0, 0, 0, 0, 1}).find("moves nothing"), std::string::npos);
  EXPECT_NE(check({1, 0, 0, 0, 8, 0, 0, 1}).find("peer has no region 1"), std::string::npos);
  EXPECT_NE(check({0, 5, 0, 0, 8, 0, 0, 1}).find("local region 5"), std::string::npos);
  EXPECT_NE(check({0, 0, 0, 0, 8, 0, 0, 1}, false).find("may not be written"), std::string::npos);
}

TEST(RegionTable, PinnedRegionsStay) {
  RegionTable table(2, [](const RegionDescription&, uint64_t*) { return UniqueFd(); });
  std::byte memory[64];
  const auto region = table.add({memory, sizeof memory, "m"});
  const std::vector<uint32_t> index{region->index};
  EXPECT_TRUE(table.pin(index));
  EXPECT_TRUE(table.pin(index));
  EXPECT_EQ(table.remove(region->index).code, kNrtResource);
  table.unpin(index);
  EXPECT_EQ(table.remove(region->index).code, kNrtResource);
  table.unpin(index);
  EXPECT_TRUE(table.remove(region->index).is_ok());
  EXPECT_EQ(table.remove(region->index).code, kNrtInvalidHandle);
  EXPECT_FALSE(table.pin(index));
  EXPECT_NE(table.add({memory, 8, "n"})->index, region->index);
  table.add({memory, 8, "o"});
  EXPECT_THROW(table.add({memory, 8, "p"}), Error);
  EXPECT_THROW(table.add({nullptr, 8, "q"}), Error);
}

}  // namespace
}  // namespace nxl::kv
