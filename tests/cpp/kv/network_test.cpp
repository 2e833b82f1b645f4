// SPDX-License-Identifier: Apache-2.0
// Peers that vanish behind a network, readers that take nothing, queues that are full: between real processes.
#include <gtest/gtest.h>

#include <cstring>

#include "kv/frozen_path.h"
#include "kv/nrt_codes.h"
#include "kv/reader.h"

namespace nxl::kv {
namespace {

using namespace test;  // NOLINT: a test program of its own

constexpr uint64_t kPool = 32 << 20;  // more than the sockets between two processes hold

const Settings kOverTcp{{"bind", "tcp:127.0.0.1:0"}, {"providers", "tcp"}};

// What the reader of another host would connect to.
std::string through(const std::string& endpoint) {
  std::string text = endpoint;
  return text.replace(text.find("127.0.0.1"), 9, "127.0.0.2");
}

Options over_tcp(milliseconds down_after) {
  return {.providers = {"tcp"}, .more = [down_after](AgentConfig& config) {
            config.bind = "tcp:127.0.0.1:0";
            config.down_after = down_after;
          }};
}

// Its control and data ports. The data listener is there once the first peer was.
std::vector<uint16_t> ports_of(ServerProcess& server) {
  Reader first(over_tcp(milliseconds(60000)));
  first.agent->connect(server.endpoint(), kLong);
  first.agent->close();
  EXPECT_TRUE(eventually([&] { return server.ask("peers") == "decode:down "; }));
  return server.listening();
}

TEST(Network, APeerThatVanishesFailsItsTransfersAtTheDeadline) {
  ServerProcess server(kOverTcp);
  FrozenPath path(ports_of(server));
  Reader reader(over_tcp(milliseconds(60000)));
  const PeerId peer = reader.agent->connect(through(server.endpoint()), kLong);
  ASSERT_EQ(reader.read(peer, reader.scattered(16, 4096)).state, TransferState::kDone);
  path.freeze();
  // A read over the connection that stands, one that needs a new connection, and a WRITE.
  const auto runs = reader.scattered(128, 4096);
  const TransferId first = reader.agent->prepare_read(peer, runs), second = reader.agent->prepare_read(peer, runs);
  const TransferId write = reader.agent->prepare_write(peer, {{reader.region, 0, 0, 0, kBytes, 0, 0, 1}});
  for (const TransferId id : {first, second, write}) {
    ASSERT_TRUE(reader.agent->post(id, milliseconds(300), "never").is_ok());
  }
  for (const TransferId id : {first, second, write}) {
    const TransferStatus status = reader.agent->wait(id, kLong);
    EXPECT_EQ(status.state, TransferState::kFailed);
    EXPECT_EQ(status.cause, Cause::kDeadline) << status.message;
  }
  // What was to be read comes to rest without the peer; whether a WRITE still runs there, only the peer could say.
  EXPECT_TRUE(eventually([&] { return reader.agent->release(first).is_ok(); }));
  EXPECT_TRUE(eventually([&] { return reader.agent->release(second).is_ok(); }));
  EXPECT_EQ(reader.agent->release(write).code, kNrtResource);
  EXPECT_TRUE(eventually([&] { return reader.agent->peer_state(peer, nullptr) == PeerState::kSuspect; }));
}

TEST(Network, ASilentPeerIsGivenUpAndFoundAgain) {
  ServerProcess server(kOverTcp);
  FrozenPath path(ports_of(server));
  Reader reader(over_tcp(milliseconds(1500)));
  const PeerId peer = reader.agent->connect(through(server.endpoint()), kLong);
  const Key before = reader.agent->peer_info(peer).incarnation;
  path.freeze();
  const TransferId id = reader.agent->prepare_read(peer, reader.scattered(128, 4096));
  ASSERT_TRUE(reader.agent->post(id, kLong, "").is_ok());
  const TransferStatus status = reader.agent->wait(id, kLong);  // long before its own deadline
  EXPECT_EQ(status.cause, Cause::kPeerLost) << status.message;
  EXPECT_TRUE(eventually([&] { return reader.agent->release(id).is_ok(); }));
  std::string why;
  EXPECT_FALSE(reader.agent->healthy(&why));
  path.thaw();
  EXPECT_TRUE(eventually([&] { return reader.agent->peer_state(peer, nullptr) == PeerState::kUp; }));
  EXPECT_EQ(reader.agent->peer_info(peer).incarnation, before);  // it was there all the time
  EXPECT_EQ(reader.read(peer, reader.scattered(256, 4096)).state, TransferState::kDone);
  EXPECT_TRUE(reader.holds(256, 4096, 1));
  EXPECT_TRUE(eventually([&] { return reader.agent->healthy(&why); })) << why;
}

TEST(Network, AKilledPeerWithALargePoolIsNoticedLongBeforeAnyTimer) {
  // Its kernel takes 512 MiB apart before it closes the sockets; how long that takes is printed by benchmarks.kv.
  Settings options = kOverTcp;
  options["region_bytes"] = std::to_string(uint64_t{512} << 20);
  options["fill"] = "0";
  options["touch"] = "1";
  ServerProcess server(options);
  Reader reader(over_tcp(milliseconds(60000)));
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  ASSERT_EQ(reader.read(peer, reader.scattered(16, 4096)).state, TransferState::kDone);
  server.signal(SIGSTOP);
  const TransferId read = reader.agent->prepare_read(peer, reader.scattered(128, 4096));
  const TransferId write = reader.agent->prepare_write(peer, {{reader.region, 0, 0, 0, kBytes, 0, 0, 1}});
  for (const TransferId id : {read, write}) ASSERT_TRUE(reader.agent->post(id, milliseconds(60000), "").is_ok());
  server.kill_now();
  for (const TransferId id : {read, write}) {
    const TransferStatus status = reader.agent->wait(id, kLong);  // a third of the deadline, of the time to give it up
    EXPECT_EQ(status.cause, Cause::kPeerLost) << status.message;
    EXPECT_TRUE(eventually([&] { return reader.agent->release(id).is_ok(); }));
  }
}

TEST(Network, SmallPiecesArriveInTheirPlaces) {
  ServerProcess server(kOverTcp);
  for (const bool checksum : {false, true}) {
    Reader reader({.providers = {"tcp"}, .more = [checksum](AgentConfig& config) { config.data_checksum = checksum; }});
    const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
    for (const uint64_t bytes : {1, 7, 96, 255, 1000}) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(kBytes / bytes, 20000));
      EXPECT_EQ(reader.read(peer, reader.scattered(count, bytes)).state, TransferState::kDone);
      EXPECT_TRUE(reader.holds(count, bytes, 1)) << bytes;
    }
    // Strided rows whose pieces are cut by the edges of chunks, among larger ones.
    std::memset(reader.memory.data, 0, kBytes);
    const std::vector<kv::Run> runs{{0, reader.region, 5, 1, 33, 41, 37, 20000},
                                    {0, reader.region, 3, 800000, 5000, 0, 0, 1}};
    EXPECT_EQ(reader.read(peer, runs).state, TransferState::kDone);
    for (uint64_t piece = 0; piece < 20000; ++piece) {
      for (uint64_t at = 0; at < 33; ++at) {
        ASSERT_EQ(reader.memory.data[1 + piece * 37 + at], pattern(1, 5 + piece * 41 + at)) << piece;
      }
      ASSERT_EQ(reader.memory.data[1 + piece * 37 + 33], std::byte{0});
    }
    for (uint64_t at = 0; at < 5000; ++at) ASSERT_EQ(reader.memory.data[800000 + at], pattern(1, 3 + at));
  }
}

TEST(SlowReader, HoldsNobodyUpAndGetsEveryByte) {
  ServerProcess producer(kOverTcp);
  Settings options{{"name", "slow"}, {"region_bytes", std::to_string(kPool)}, {"fill", "0"}, {"providers", "tcp"}};
  ServerProcess slow_reader(options);
  slow_reader.ask("connect " + producer.endpoint());
  ASSERT_EQ(slow_reader.ask("read 8192 4096 1048576 60000"), "0");
  slow_reader.signal(SIGSTOP);  // in the middle of it, or just before: it takes nothing more
  Reader reader(over_tcp(milliseconds(60000)));
  const PeerId peer = reader.agent->connect(producer.endpoint(), kLong);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(reader.read(peer, reader.scattered(256, 4096)).state, TransferState::kDone);
    EXPECT_TRUE(reader.holds(256, 4096, 1));
  }
  slow_reader.signal(SIGCONT);
  std::string progress;
  EXPECT_TRUE(eventually([&] {
    progress = slow_reader.ask("progress");
    return !progress.starts_with("active") && !progress.starts_with("posted");
  }));
  EXPECT_EQ(progress, "done none " + std::to_string(kPool));
  const std::string sum = producer.ask("checksum 0 1048576");
  for (int i = 0; i < 32; i += 31) {
    EXPECT_EQ(slow_reader.ask("checksum " + std::to_string(i << 20) + " 1048576"), sum);
  }
}

TEST(FullQueues, HoldTheSenderBackAndLoseNothing) {
  ServerProcess server(Settings{{"max_notification_bytes", "2000"}});
  Reader reader({.more = [](AgentConfig& config) { config.max_notification_bytes = 4000; }});
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  const TransferId read = reader.agent->prepare_read(peer, reader.scattered(16, 4096));
  // The server polls nothing: first its inbox is full, then this side's queue.
  size_t sent = 0;
  std::string expected;
  const auto send = [&] {
    const std::string payload = std::to_string(sent) + "-" + std::string(300, 'x');
    const Status status = reader.agent->notify(peer, payload);
    if (!status.is_ok()) return status.code;
    expected += "decode:" + payload + " ";
    ++sent;
    return 0;
  };
  EXPECT_TRUE(eventually([&] {  // its acknowledgements of the first ones make room for a while
    while (send() == 0) {
    }
    return sent >= (2000 / 302) + (4000 / 400);
  })) << sent;
  EXPECT_EQ(send(), kNrtResource);
  const Status full = reader.agent->post(read, kLong, std::string(600, 'y'));
  // A post is taken as long as its own notification may be owed: the queue is bounded, what was promised is kept.
  if (full.is_ok()) {
    EXPECT_EQ(reader.agent->wait(read, kLong).state, TransferState::kDone);
    expected += "decode:" + std::string(600, 'y') + " ";
    EXPECT_EQ(reader.agent->post(read, kLong, "z").code, kNrtResource);
  } else {
    EXPECT_EQ(full.code, kNrtResource);
  }
  // A WRITE that would notify a full inbox is refused before it moves a byte.
  const TransferId write = reader.agent->prepare_write(peer, {{reader.region, 0, 0, 0, 4096, 0, 0, 1}});
  std::string got;
  EXPECT_TRUE(eventually([&] {
    got += server.ask("notifications");
    return got.size() >= expected.size();
  }));
  EXPECT_EQ(got, expected);
  EXPECT_TRUE(eventually([&] { return reader.agent->post(write, kLong, std::string(1500, 'w')).is_ok(); }));
  EXPECT_EQ(reader.agent->wait(write, kLong).state, TransferState::kDone);
  EXPECT_TRUE(eventually([&] { return reader.agent->post(write, kLong, std::string(1500, 'v')).is_ok(); }));
  const TransferStatus refused = reader.agent->wait(write, kLong);  // the first one was not polled
  EXPECT_EQ(refused.cause, Cause::kRefused);
  EXPECT_NE(refused.message.find("post again later"), std::string::npos) << refused.message;
  EXPECT_EQ(server.ask("notifications"), "decode:" + std::string(1500, 'w') + " ");
  ASSERT_TRUE(reader.agent->post(write, kLong, "u").is_ok());
  EXPECT_EQ(reader.agent->wait(write, kLong).state, TransferState::kDone);
}

TEST(Close, WithAStoppedTargetEndsAndNothingOfItCounts) {
  for (const char* provider : {"shm", "cma", "tcp"}) {
    ServerProcess server(Settings{{"providers", provider}});
    const std::string before = server.ask("checksum 0 1048576");
    Reader reader({.providers = {provider}});
    const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
    server.signal(SIGSTOP);
    fill(reader.memory.span(), 6);
    const TransferId id = reader.agent->prepare_write(peer, {{reader.region, 0, 0, 0, kBytes, 0, 0, 1}});
    ASSERT_TRUE(reader.agent->post(id, kLong, "written").is_ok());
    ASSERT_TRUE(eventually([&] { return reader.agent->check(id).state == TransferState::kActive; }));
    reader.agent->close();  // does not wait for the target longer than it says goodbye
    const TransferStatus status = reader.agent->check(id);
    EXPECT_EQ(status.state, TransferState::kFailed) << provider;
    EXPECT_EQ(status.cause, Cause::kClosed) << provider;
    EXPECT_TRUE(status.quiesced);
    EXPECT_TRUE(reader.agent->release(id).is_ok());
    std::memset(reader.memory.data, 0, kBytes);  // the memory is the caller's again
    server.signal(SIGCONT);
    EXPECT_TRUE(eventually([&] { return server.ask("peers") == "decode:down "; })) << provider;
    // Whatever the target copied after that is not taken for the data: it tells nobody that the WRITE is there.
    EXPECT_EQ(server.ask("notifications"), "") << provider;
    EXPECT_NE(server.ask("stats").find("\"transfers_in_flight\": 0"), std::string::npos) << provider;
  }
}

}  // namespace
}  // namespace nxl::kv
