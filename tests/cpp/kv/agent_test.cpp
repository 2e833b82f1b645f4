// SPDX-License-Identifier: Apache-2.0
// Agents of one process: configuration, layouts at the handshake, stages of cancel, limits, the end.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <functional>
#include <thread>

#include "core/error.h"
#include "kv/agent_core.h"
#include "kv/nrt_codes.h"
#include "kv/providers/fault_channel.h"
#include "kv/sample_frames.h"
#include "kv/server_process.h"

namespace nxl::kv {
namespace {

using std::chrono::milliseconds;
using test::SharedMemory;

constexpr Milliseconds kLong{20000};
constexpr size_t kBytes = 1 << 20;

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

struct Node {
  explicit Node(const std::string& name, FaultPlan faults = {}, const std::function<void(AgentConfig&)>& more = {})
      : memory(kBytes) {
    AgentConfig config;
    config.name = name;
    if (more) more(config);
    AgentParts parts;
    auto plan = std::make_shared<const FaultPlan>(faults);
    parts.make_provider = [plan](const std::string& provider, ProviderHost& host) {
      return make_fault_provider(make_provider(provider, host), host, plan);
    };
    agent = make_agent(config, parts);
    region = agent->register_region(memory.describe(name + "-pool"));
  }
  std::vector<Run> pieces(uint32_t count) const {
    std::vector<Run> runs;
    for (uint32_t i = 0; i < count; ++i) runs.push_back({0, region, i * 4096u, i * 4096u, 2048, 0, 0, 1});
    return runs;
  }

  SharedMemory memory;
  std::unique_ptr<Agent> agent;
  uint32_t region = 0;
};

FaultPlan slow(milliseconds per_run) {
  FaultPlan plan;
  plan.run_delay = per_run;
  return plan;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Agent, RefusesConfigurationsByName) {
  const auto refusal = [](const std::function<void(AgentConfig&)>& change) {
    AgentConfig config;
    config.name = "a";
    change(config);
    return error_of([&] { Agent::create(config); });
  };
  EXPECT_NE(refusal([](auto& c) { c.name = ""; }).find("name has 0 bytes"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.copy_threads = 0; }).find("copy_threads is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.bind = "tcp:0.0.0.0:0"; }).find("set key_file"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.bind = "http://x"; }).find("unix:/path"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.providers = {"pigeon"}; }).find("pigeon"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.suspect_after = milliseconds(1); }).find("must rise"), std::string::npos);
  EXPECT_EQ(refusal([](auto& c) {
              c.bind = "tcp:0.0.0.0:0";
              c.insecure = true;
              c.providers = {"tcp"};
            }),
            "");
}

TEST(Agent, ConnectsOnceAndTellsWhoIsThere) {
  Node a("a"), b("b");
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  EXPECT_EQ(b.agent->connect(a.agent->endpoint(), kLong), peer);
  EXPECT_EQ(b.agent->find_peer("a"), peer);
  EXPECT_EQ(b.agent->find_peer("c"), 0u);
  EXPECT_EQ(b.agent->peer_info(peer).incarnation, a.agent->incarnation());
  EXPECT_EQ(b.agent->peer_info(peer).providers.front(), "loopback");
  ASSERT_EQ(b.agent->peer_regions(peer).size(), 1u);
  EXPECT_EQ(b.agent->peer_regions(peer)[0].name, "a-pool");
  EXPECT_TRUE(eventually([&] { return a.agent->find_peer("b") != 0; }));
  SharedMemory more(4096);
  a.agent->register_region(more.describe("later"));
  EXPECT_TRUE(eventually([&] { return b.agent->peer_regions(peer).size() == 2; }));
  EXPECT_TRUE(a.agent->deregister(1).is_ok());
  EXPECT_TRUE(eventually([&] { return b.agent->peer_regions(peer).size() == 1; }));
  b.agent->disconnect(peer);
  EXPECT_EQ(b.agent->find_peer("a"), 0u);
  EXPECT_TRUE(eventually([&] { return a.agent->peers().at(0).state == PeerState::kDown; }));
}

TEST(Agent, TwoOfOneNameDoNotMeet) {
  Node a("same"), b("same");
  EXPECT_NE(error_of([&] { b.agent->connect(a.agent->endpoint(), kLong); }).find("both agents are same"),
            std::string::npos);
}

TEST(Agent, NobodyThereIsAnErrorAtTheDeadline) {
  Node a("a");
  EXPECT_NE(
      error_of([&] { a.agent->connect("unix:/tmp/nxl-kv-nobody", milliseconds(150)); }).find("not up after 150 ms"),
      std::string::npos);
  EXPECT_TRUE(a.agent->peers().empty());
}

// A pool of 16 blocks of 4 tokens; two layers, two heads.
KvLayout layout_of(uint64_t region_bytes) {
  KvLayout layout = test::sample_layout();
  layout.region_bytes = {region_bytes};
  return layout;
}

TEST(Agent, LayoutsThatDoNotFitAreAConnectErrorThatNamesTheField) {
  Node a("a"), b("b");
  a.agent->describe_kv(layout_of(kBytes), std::vector<uint32_t>{0});
  KvLayout other = layout_of(kBytes);
  other.dtype = "float16";
  b.agent->describe_kv(other, std::vector<uint32_t>{0});
  EXPECT_NE(error_of([&] { b.agent->connect(a.agent->endpoint(), kLong); }).find("dtype is bfloat16 at the source"),
            std::string::npos);
}

TEST(Agent, ALeasedReadByPlanMovesTokensAndFinishesTheLease) {
  Node a("a"), b("b");
  test::fill(a.memory.span(), 3);
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  a.agent->describe_kv(layout_of(kBytes), std::vector<uint32_t>{0});  // after the handshake
  b.agent->describe_kv(layout_of(kBytes), std::vector<uint32_t>{0});
  KvLayout seen;
  std::vector<uint32_t> places;
  ASSERT_TRUE(eventually([&] { return b.agent->peer_layout(peer, &seen, &places); }));
  EXPECT_EQ(seen.block_count, 16u);
  const std::vector<uint32_t> remote{7, 2}, local{1, 4};
  const LeaseTicket ticket = a.agent->grant("r", remote, std::vector<std::string>{"b"}, kLong);
  EXPECT_EQ(a.agent->deregister(0).code, kNrtResource);
  std::memset(b.memory.data, 0xFF, kBytes);
  const TransferId id = b.agent->prepare_kv_read(peer, ticket, {0, 6}, {remote, 0}, {local, 0}, {true, true});
  ASSERT_TRUE(b.agent->post(id, kLong, "arrived").is_ok());
  ASSERT_EQ(b.agent->wait(id, kLong).state, TransferState::kDone) << b.agent->check(id).message;
  const uint64_t token = 32, block = token * 4, slot = block * 16;
  for (uint64_t s = 0; s < 4; ++s) {
    for (uint64_t t = 0; t < 8; ++t) {
      for (uint64_t byte = 0; byte < token; ++byte) {
        const uint64_t from = s * slot + remote[t / 4] * block + t % 4 * token + byte;
        const uint64_t to = s * slot + local[t / 4] * block + t % 4 * token + byte;
        ASSERT_EQ(b.memory.data[to], t < 6 ? test::pattern(3, from) : std::byte{0}) << s << ' ' << t;
      }
    }
  }
  EXPECT_EQ(b.memory.data[0], std::byte{0xFF});
  std::vector<LeaseEvent> events;
  EXPECT_TRUE(eventually([&] { return !(events = a.agent->poll_lease_events(9)).empty(); }));
  EXPECT_EQ(events[0].end, LeaseEnd::kRead);
  EXPECT_EQ(a.agent->poll_notifications(9).at(0).payload, "arrived");
  EXPECT_NE(error_of([&] { b.agent->prepare_kv_read(peer, ticket, {0, 9}, {remote, 0}, {local, 0}, {}); }), "");
  EXPECT_TRUE(b.agent->release(id).is_ok());
  // Nothing to move still ends the lease.
  const LeaseTicket empty = a.agent->grant("e", remote, std::vector<std::string>{"b"}, kLong);
  const TransferId none = b.agent->prepare_kv_read(peer, empty, {0, 0}, {remote, 0}, {local, 0}, {});
  ASSERT_TRUE(b.agent->post(none, kLong, "").is_ok());
  EXPECT_EQ(b.agent->check(none).state, TransferState::kDone);
  EXPECT_TRUE(eventually([&] { return a.agent->poll_lease_events(9).size() == 1; }));
}

TEST(Agent, AFailedPlannedReadNamesItsTokens) {
  FaultPlan plan;
  plan.fail_at_run = 1;
  Node a("a"), b("b", plan);
  a.agent->describe_kv(layout_of(kBytes), std::vector<uint32_t>{0});
  b.agent->describe_kv(layout_of(kBytes), std::vector<uint32_t>{0});
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  const std::vector<uint32_t> blocks{7, 2};
  const LeaseTicket ticket = a.agent->grant("r", blocks, std::vector<std::string>{"b"}, kLong);
  const TransferId id = b.agent->prepare_kv_read(peer, ticket, {1, 6}, {blocks, 0}, {blocks, 0}, {});
  ASSERT_TRUE(b.agent->post(id, kLong, "never").is_ok());
  const TransferStatus status = b.agent->wait(id, kLong);
  EXPECT_EQ(status.cause, Cause::kProvider);
  ASSERT_EQ(status.failed_tokens.size(), 1u);
  EXPECT_EQ(status.failed_tokens[0].begin, 1u);
  EXPECT_EQ(status.failed_tokens[0].end, 6u);
  EXPECT_TRUE(a.agent->poll_notifications(9).empty());
  EXPECT_TRUE(a.agent->poll_lease_events(9).empty());
}

TEST(Agent, BytesThatDidNotArriveAreAnIntegrityFailure) {
  FaultPlan plan;
  plan.lie_about_size = true;
  Node a("a"), b("b", plan);
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  const TransferId id = b.agent->prepare_read(peer, b.pieces(4));
  ASSERT_TRUE(b.agent->post(id, kLong, "").is_ok());
  EXPECT_EQ(b.agent->wait(id, kLong).cause, Cause::kIntegrity);
}

TEST(Agent, CancelEndsEveryStageOnce) {
  Node a("a"), b("b", slow(milliseconds(10)), [](AgentConfig&c) { c.inline_bytes = 0; });
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  const TransferId prepared = b.agent->prepare_read(peer, b.pieces(2));
  b.agent->cancel(prepared);
  EXPECT_EQ(b.agent->check(prepared).state, TransferState::kCancelled);
  EXPECT_TRUE(b.agent->release(prepared).is_ok());

  const TransferId active = b.agent->prepare_read(peer, b.pieces(200));
  const TransferId queued = b.agent->prepare_read(peer, b.pieces(2));  // behind it on the one copy thread
  ASSERT_TRUE(b.agent->post(active, kLong, "").is_ok());
  ASSERT_TRUE(b.agent->post(queued, kLong, "").is_ok());
  EXPECT_EQ(b.agent->post(queued, kLong, "").code, kNrtInvalid);
  ASSERT_TRUE(eventually([&] { return b.agent->check(active).bytes_done > 0; }));
  EXPECT_EQ(b.agent->check(queued).state, TransferState::kPosted);
  b.agent->cancel(queued);
  EXPECT_EQ(b.agent->check(queued).state, TransferState::kCancelled);
  EXPECT_TRUE(b.agent->check(queued).quiesced);
  EXPECT_TRUE(b.agent->release(queued).is_ok());
  EXPECT_EQ(b.agent->release(active).code, kNrtResource);
  EXPECT_EQ(b.agent->deregister(b.region).code, kNrtResource);
  b.agent->cancel(active);
  const TransferStatus status = b.agent->wait(active, kLong);
  EXPECT_EQ(status.state, TransferState::kCancelled);
  EXPECT_EQ(status.cause, Cause::kCancelled);
  EXPECT_TRUE(status.quiesced);
  b.agent->cancel(active);
  EXPECT_TRUE(b.agent->release(active).is_ok());
  EXPECT_EQ(b.agent->release(active).code, kNrtInvalidHandle);

  const TransferId done = b.agent->prepare_read(peer, b.pieces(1));
  ASSERT_TRUE(b.agent->post(done, kLong, "").is_ok());
  EXPECT_EQ(b.agent->wait(done, kLong).state, TransferState::kDone);
  b.agent->cancel(done);
  EXPECT_EQ(b.agent->check(done).state, TransferState::kDone);
  ASSERT_TRUE(b.agent->post(done, kLong, "").is_ok());  // once more
  EXPECT_EQ(b.agent->wait(done, kLong).state, TransferState::kDone);
  EXPECT_TRUE(b.agent->release(done).is_ok());
  EXPECT_TRUE(b.agent->deregister(b.region).is_ok());
}

TEST(Agent, ACancelledWriteComesToRestAtTheTarget) {
  Node a("a", slow(milliseconds(10))), b("b");
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  const TransferId id = b.agent->prepare_write(peer, {{b.region, 0, 0, 0, 1024, 4096, 4096, 200}});
  ASSERT_TRUE(b.agent->post(id, kLong, "never").is_ok());
  ASSERT_TRUE(eventually([&] { return b.agent->check(id).state == TransferState::kActive; }));
  b.agent->cancel(id);
  const TransferStatus status = b.agent->wait(id, kLong);
  EXPECT_EQ(status.state, TransferState::kCancelled);
  EXPECT_TRUE(status.quiesced);
  EXPECT_TRUE(b.agent->release(id).is_ok());
  EXPECT_TRUE(a.agent->poll_notifications(9).empty());
}

TEST(Agent, RegionsHaveDirections) {
  Node a("a"), b("b");
  SharedMemory sealed(4096), drop(4096);
  RegionDescription only_read = sealed.describe("sealed"), only_write = drop.describe("drop");
  only_read.writable = false;
  only_write.readable = false;
  const uint32_t r = a.agent->register_region(only_read), w = a.agent->register_region(only_write);
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  EXPECT_NE(error_of([&] {
              b.agent->prepare_write(peer, {{b.region, r, 0, 0, 8, 0, 0, 1}});
            }).find("may not be written"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              b.agent->prepare_read(peer, {{w, b.region, 0, 0, 8, 0, 0, 1}});
            }).find("may not be read"),
            std::string::npos);
}

TEST(Agent, SeveralCopyThreadsShareOneTransfer) {
  Node a("a"), b("b", {}, [](AgentConfig&c) {
    c.copy_threads = 3;
    c.inline_bytes = 0;
  });
  test::fill(a.memory.span(), 8);
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  const TransferId id = b.agent->prepare_read(peer, {{0, b.region, 0, 0, kBytes, 0, 0, 1}});
  for (int round = 0; round < 5; ++round) {
    std::memset(b.memory.data, 0, kBytes);
    ASSERT_TRUE(b.agent->post(id, kLong, "").is_ok());
    ASSERT_EQ(b.agent->wait(id, kLong).state, TransferState::kDone);
    EXPECT_EQ(std::memcmp(a.memory.data, b.memory.data, kBytes), 0);
    EXPECT_TRUE(eventually([&] { return b.agent->check(id).quiesced; }));
  }
}

TEST(Agent, LimitsAreBackPressure) {
  Node a("a"), b("b", slow(milliseconds(10)), [](AgentConfig&c) {
    c.inline_bytes = 0;
    c.max_bytes_in_flight = 300 * 1024;
    c.max_transfers = 3;
    c.max_notification_bytes = 2000;
  });
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  EXPECT_NE(error_of([&] {
              b.agent->prepare_read(peer, {{0, 0, 0, 0, 400 * 1024, 0, 0, 1}});
            }).find("max_bytes_in_flight"),
            std::string::npos);
  const TransferId one = b.agent->prepare_read(peer, b.pieces(100));
  const TransferId two = b.agent->prepare_read(peer, b.pieces(100));
  ASSERT_TRUE(b.agent->post(one, kLong, "").is_ok());
  EXPECT_EQ(b.agent->post(two, kLong, "").code, kNrtResource);
  EXPECT_EQ(b.agent->check(two).state, TransferState::kPrepared);
  b.agent->prepare_read(peer, b.pieces(1));
  EXPECT_NE(error_of([&] { b.agent->prepare_read(peer, b.pieces(1)); }).find("max_transfers is 3"), std::string::npos);
  EXPECT_EQ(b.agent->wait(one, kLong).state, TransferState::kDone);
  ASSERT_TRUE(eventually([&] { return b.agent->post(two, kLong, "").is_ok(); }));
  EXPECT_EQ(b.agent->wait(two, kLong).state, TransferState::kDone);
  int taken = 0;
  while (b.agent->notify(peer, std::string(400, 'x')).is_ok() && taken < 1000) ++taken;
  EXPECT_GT(taken, 0);
  // Polled or not, the receiver has room: the queue empties by its acknowledgements.
  EXPECT_TRUE(eventually([&] { return b.agent->notify(peer, std::string(400, 'x')).is_ok(); }));
  EXPECT_NE(b.agent->prometheus().find("nxl_kv_refused_posts_total{agent=\"b\"} 1"), std::string::npos);
}

TEST(Agent, ASlowPollerLosesNoNotification) {
  Node a("a", {}, [](AgentConfig&c) { c.max_notification_bytes = 1000; }), b("b");
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(b.agent->notify(peer, std::string(300, static_cast<char>('a' + i))).is_ok());
  std::string order;
  EXPECT_TRUE(eventually([&] {
    for (const Notification& n : a.agent->poll_notifications(1)) order += n.payload[0];
    return order.size() == 12;
  })) << order;
  EXPECT_EQ(order, "abcdefghijkl");
}

TEST(Agent, TheDescriptorIsReadableWhenItIsOver) {
  Node a("a"), b("b", slow(milliseconds(2)), [](AgentConfig&c) { c.inline_bytes = 0; });
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  const TransferId id = b.agent->prepare_read(peer, b.pieces(20));
  pollfd ready{b.agent->completion_fd(id), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  ASSERT_TRUE(b.agent->post(id, kLong, "").is_ok());
  EXPECT_EQ(::poll(&ready, 1, static_cast<int>(kLong.count())), 1);
  EXPECT_EQ(b.agent->check(id).state, TransferState::kDone);
  const TransferTimes times = b.agent->times(id);
  EXPECT_EQ(times.bytes, 20u * 2048);
  EXPECT_EQ(times.provider, "loopback");
  EXPECT_GT(times.wire, 0);
  EXPECT_GE(times.total, times.wire);
  EXPECT_NE(b.agent->prometheus().find("provider=\"loopback\",op=\"read\",cause=\"done\"} 1"), std::string::npos);
}

TEST(Agent, DrainWaitsAndCloseFailsWhatIsLeft) {
  Node a("a"), b("b", slow(milliseconds(10)), [](AgentConfig&c) { c.inline_bytes = 0; });
  const PeerId peer = b.agent->connect(a.agent->endpoint(), kLong);
  const TransferId id = b.agent->prepare_read(peer, b.pieces(250));
  const TransferId late = b.agent->prepare_read(peer, b.pieces(1));
  ASSERT_TRUE(b.agent->post(id, kLong, "").is_ok());
  ASSERT_TRUE(eventually([&] { return b.agent->check(id).bytes_done > 0; }));
  EXPECT_EQ(b.agent->drain(milliseconds(20)).code, kNrtTimeout);
  EXPECT_EQ(b.agent->post(late, kLong, "").code, kNrtClosed);
  b.agent->close();
  b.agent->close();
  const TransferStatus status = b.agent->check(id);
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.cause, Cause::kClosed);
  EXPECT_TRUE(status.quiesced);
  EXPECT_TRUE(b.agent->release(id).is_ok());
  EXPECT_NE(error_of([&] { b.agent->prepare_read(peer, b.pieces(1)); }).find("was closed"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return a.agent->peers().at(0).state == PeerState::kDown; }));
}

}  // namespace
}  // namespace nxl::kv
