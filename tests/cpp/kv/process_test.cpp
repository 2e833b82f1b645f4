// SPDX-License-Identifier: Apache-2.0
// Failures between two real processes: killed, stopped, restarted, late, refused, and what each leaves behind.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <fstream>
#include <random>

#include "core/error.h"
#include "kv/nrt_codes.h"
#include "kv/reader.h"

namespace nxl::kv {
namespace {

using namespace test;  // NOLINT: a test program of its own

class ByProvider : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Providers, ByProvider, ::testing::Values("shm", "cma", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(ByProvider, ReadsAndWritesEveryByte) {
  ServerProcess server(Settings{{"providers", GetParam()}});
  Reader reader({.providers = {GetParam()}});
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  EXPECT_EQ(reader.agent->peer_info(peer).providers, std::vector<std::string>{GetParam()});
  EXPECT_EQ(reader.read(peer, reader.scattered(256, 4096)).state, TransferState::kDone);
  EXPECT_TRUE(reader.holds(256, 4096, 1));
  EXPECT_EQ(reader.read(peer, reader.scattered(1, 4096)).state, TransferState::kDone);
  EXPECT_EQ(reader.read(peer, {}).state, TransferState::kDone);

  fill(reader.memory.span(), 5);
  const TransferId write = reader.agent->prepare_write(peer, {{reader.region, 0, 0, 0, kBytes, 0, 0, 1}});
  ASSERT_TRUE(reader.agent->post(write, kLong, "written").is_ok());
  const TransferStatus status = reader.agent->wait(write, kLong);
  EXPECT_EQ(status.state, TransferState::kDone) << status.message;
  EXPECT_TRUE(status.quiesced);
  // The notification is what tells the target's own threads that the bytes are there.
  EXPECT_EQ(server.ask("notifications"), "decode:written ");
  EXPECT_EQ(server.ask("checksum 0 " + std::to_string(kBytes)), std::to_string(reader.checksum()));
  EXPECT_TRUE(reader.agent->release(write).is_ok());
}

TEST_P(ByProvider, AKilledPeerFailsItsTransfersAndTheMemoryIsFree) {
  ServerProcess server(Settings{{"providers", GetParam()}});
  Reader reader({.providers = {GetParam()}, .faults = slow(milliseconds(20))});
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  const TransferId id = reader.agent->prepare_read(peer, reader.scattered(256, 4096));
  ASSERT_TRUE(reader.agent->post(id, kLong, "").is_ok());
  ASSERT_TRUE(eventually([&] { return reader.agent->check(id).bytes_done > 0; }));
  const auto killed = std::chrono::steady_clock::now();
  server.kill_now();
  const TransferStatus status = reader.agent->wait(id, kLong);
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.cause, Cause::kPeerLost);
  EXPECT_LT(std::chrono::steady_clock::now() - killed, milliseconds(2500));  // well before the copy would have ended
  EXPECT_TRUE(eventually([&] { return reader.agent->release(id).is_ok(); }));
  std::string why;
  EXPECT_TRUE(eventually([&] { return !reader.agent->healthy(&why); }));
  EXPECT_NE(why.find("prefill is down"), std::string::npos) << why;
  EXPECT_THROW(reader.agent->prepare_read(peer, reader.scattered(1, 8)), Error);
}

TEST(Process, AStoppedPeerFailsAtTheDeadlineAndIsUsedAgain) {
  ServerProcess server(Settings{{"providers", "tcp"}});
  Reader reader({.providers = {"tcp"}});
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  ASSERT_EQ(reader.read(peer, reader.scattered(16, 4096)).state, TransferState::kDone);
  server.signal(SIGSTOP);
  const TransferStatus status = reader.read(peer, reader.scattered(256, 4096), milliseconds(300));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.cause, Cause::kDeadline);
  EXPECT_TRUE(eventually([&] { return reader.agent->peer_state(peer, nullptr) == PeerState::kSuspect; }));
  server.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return reader.agent->peer_state(peer, nullptr) == PeerState::kUp; }));
  EXPECT_EQ(reader.read(peer, reader.scattered(256, 4096)).state, TransferState::kDone);
  EXPECT_TRUE(reader.holds(256, 4096, 1));
}

TEST(Process, AWriteToAStoppedTargetStaysBusyUntilItSaysThatItStopped) {
  ServerProcess server(Settings{});
  Reader reader;
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  server.signal(SIGSTOP);
  const TransferId id = reader.agent->prepare_write(peer, {{reader.region, 0, 0, 0, kBytes, 0, 0, 1}});
  const int fd = reader.agent->completion_fd(id);
  ASSERT_TRUE(reader.agent->post(id, milliseconds(200), "").is_ok());
  const TransferStatus status = reader.agent->wait(id, kLong);
  EXPECT_EQ(status.cause, Cause::kDeadline);
  EXPECT_FALSE(status.quiesced);
  pollfd ready{fd, POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 10000), 1);
  EXPECT_EQ(reader.agent->release(id).code, kNrtResource);
  EXPECT_NE(reader.agent->prometheus().find("nxl_kv_quarantined_bytes{agent=\"decode\"} 1048576"), std::string::npos);
  EXPECT_NE(reader.agent->dump_in_flight().find("failed, not quiesced, deadline"), std::string::npos);
  server.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return reader.agent->release(id).is_ok(); }));
  EXPECT_NE(reader.agent->prometheus().find("nxl_kv_quarantined_bytes{agent=\"decode\"} 0"), std::string::npos);
}

TEST(Process, ARestartedPeerIsANewOneAndTheAgentFindsItAgain) {
  const std::string bind = "unix:" + private_path(".sock");
  auto first = std::make_unique<ServerProcess>(Settings{{"bind", bind}});
  Reader reader;
  const PeerId peer = reader.agent->connect(bind, kLong);
  const Key before = reader.agent->peer_info(peer).incarnation;
  const TransferId old = reader.agent->prepare_read(peer, reader.scattered(16, 4096));
  first->kill_now();
  ServerProcess second(Settings{{"bind", bind}, {"fill", "2"}});
  EXPECT_TRUE(eventually([&] {
    const PeerInfo info = reader.agent->peer_info(peer);
    return info.state == PeerState::kUp && info.incarnation != before;
  }));
  EXPECT_EQ(reader.agent->peer_info(peer).reconnects, 1u);
  ASSERT_TRUE(reader.agent->post(old, kLong, "").is_ok());
  EXPECT_EQ(reader.agent->check(old).cause, Cause::kPeerLost);
  EXPECT_TRUE(reader.agent->release(old).is_ok());
  EXPECT_EQ(reader.read(peer, reader.scattered(256, 4096)).state, TransferState::kDone);
  EXPECT_TRUE(reader.holds(256, 4096, 2));
  std::string why;
  EXPECT_TRUE(reader.agent->healthy(&why)) << why;
}

TEST(Process, ARestartedReaderReplacesItsOldSelf) {
  ServerProcess producer(Settings{{"name", "prefill"}});
  auto first = std::make_unique<Reader>();
  first->agent->connect(producer.endpoint(), kLong);
  Reader second;  // the same name, another incarnation, while the first one still lives
  second.agent->connect(producer.endpoint(), kLong);
  EXPECT_TRUE(eventually([&] { return producer.ask("peers") == "decode:up "; }));
  EXPECT_TRUE(eventually([&] { return first->agent->peers().at(0).state == PeerState::kDown; }));
  EXPECT_NE(first->agent->peers().at(0).why.find("new incarnation"), std::string::npos);
}

TEST(Process, ALeaseThatEndsDuringTheReadFailsIt) {
  ServerProcess server(Settings{});
  for (const char* how : {"expiry", "release"}) {
    const bool expires = std::string(how) == "expiry";
    Reader reader({.faults = slow(milliseconds(8))});
    const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
    const LeaseTicket ticket = ticket_from(server.ask(expires ? "grant decode 200" : "grant decode 60000"));
    const TransferId id = reader.agent->prepare_read(peer, reader.scattered(100, 4096), ticket);
    ASSERT_TRUE(reader.agent->post(id, kLong, "done").is_ok());
    if (!expires) {
      ASSERT_TRUE(eventually([&] { return reader.agent->check(id).bytes_done > 0; }));
      EXPECT_EQ(server.ask("release " + std::to_string(ticket.id)), "0");
      EXPECT_EQ(server.ask("release " + std::to_string(ticket.id)), "0");
    }
    const TransferStatus status = reader.agent->wait(id, kLong);
    EXPECT_EQ(status.state, TransferState::kFailed) << how;
    EXPECT_EQ(status.cause, Cause::kLeaseExpired) << how << status.message;
    EXPECT_EQ(server.ask("events"), std::to_string(ticket.id) + (expires ? ":expired " : ":released "));
    EXPECT_EQ(server.ask("notifications"), "");
    EXPECT_TRUE(reader.agent->release(id).is_ok());
  }
}

TEST_P(ByProvider, AnEndedLeaseIsNotReadAtAll) {
  ServerProcess server(Settings{{"providers", GetParam()}});
  Reader reader({.providers = {GetParam()}});
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  const LeaseTicket ticket = ticket_from(server.ask("grant decode 60000"));
  const TransferId id = reader.agent->prepare_read(peer, reader.scattered(100, 4096), ticket);
  ASSERT_TRUE(reader.agent->post(id, kLong, "").is_ok());
  EXPECT_EQ(reader.agent->wait(id, kLong).state, TransferState::kDone);
  // Finishing twice is finishing once.
  EXPECT_TRUE(reader.agent->finish_lease(peer, ticket).is_ok());
  EXPECT_TRUE(reader.agent->finish_lease(peer, ticket).is_ok());
  std::string events;
  EXPECT_TRUE(eventually([&] { return !(events = server.ask("events")).empty(); }));
  EXPECT_EQ(events, std::to_string(ticket.id) + ":read ");
  const uint32_t before = reader.checksum();
  server.ask("fill 9");
  ASSERT_TRUE(reader.agent->post(id, kLong, "").is_ok());
  EXPECT_EQ(reader.agent->wait(id, kLong).cause, Cause::kLeaseExpired);
  EXPECT_EQ(reader.checksum(), before);
  EXPECT_TRUE(eventually([&] { return reader.agent->release(id).is_ok(); }));
}

TEST(Process, AReleasedTransferLandsNoByte) {
  ServerProcess server(Settings{});
  Reader reader({.faults = slow(milliseconds(5))});
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  for (int round = 0; round < 3; ++round) {
    const TransferId id = reader.agent->prepare_read(peer, reader.scattered(250, 4096));
    ASSERT_TRUE(reader.agent->post(id, kLong, "").is_ok());
    ASSERT_TRUE(eventually([&] { return reader.agent->check(id).bytes_done > 0; }));
    EXPECT_EQ(reader.agent->release(id).code, kNrtResource);
    reader.agent->cancel(id);
    EXPECT_TRUE(eventually([&] { return reader.agent->release(id).is_ok(); }));
    std::memset(reader.memory.data, 0xEE, kBytes);
    const uint32_t before = reader.checksum();
    std::this_thread::sleep_for(milliseconds(60));
    EXPECT_EQ(reader.checksum(), before);
  }
}

TEST(Process, KeysMustBeTheSameOnBothSides) {
  const std::string right = private_path(".key"), wrong = private_path(".key");
  std::ofstream(right) << "a pre-shared key of some length";
  std::ofstream(wrong) << "another pre-shared key of length";
  ::chmod(right.c_str(), 0600);
  ::chmod(wrong.c_str(), 0600);
  ServerProcess locked(Settings{{"key_file", right}, {"bind", "tcp:127.0.0.1:0"}, {"providers", "tcp"}});
  ServerProcess open(Settings{{"bind", "tcp:127.0.0.1:0"}, {"providers", "tcp"}});
  const auto refusal = [](const std::string& key_file, const std::string& endpoint) -> std::string {
    Reader reader({.providers = {"tcp"}, .key_file = key_file});
    try {
      const PeerId peer = reader.agent->connect(endpoint, kLong);
      return reader.read(peer, reader.scattered(256, 4096)).state == TransferState::kDone ? "" : "not read";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal(right, locked.endpoint()), "");
  EXPECT_NE(refusal(wrong, locked.endpoint()).find("keys of the two agents differ"), std::string::npos);
  EXPECT_NE(refusal("", locked.endpoint()).find("this agent has a pre-shared key and the peer has none"),
            std::string::npos);
  EXPECT_NE(refusal(right, open.endpoint()).find("the peer has a pre-shared key and this agent has none"),
            std::string::npos);
  const auto stats = locked.ask("stats");
  EXPECT_NE(stats.find("\"sessions_up_total\": 1"), std::string::npos) << stats;
  ::unlink(right.c_str());
  ::unlink(wrong.c_str());
}

// A bare socket to the server of an agent, for what no agent would say.
UniqueFd raw_connect(const std::string& endpoint) {
  const Address address = Address::parse(endpoint);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.path.data(), address.path.size());
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  return fd;
}

std::string read_to_end(int fd) {
  std::string all;
  char bytes[4096];
  for (ssize_t got; (got = ::read(fd, bytes, sizeof bytes)) > 0;) all.append(bytes, static_cast<size_t>(got));
  return all;
}

TEST(Process, AnotherProtocolVersionIsToldSo) {
  ServerProcess server(Settings{});
  const UniqueFd fd = raw_connect(server.endpoint());
  FrameHeader header;
  header.major = 2;
  header.type = FrameType::kHello;
  header.sequence = 1;
  const auto hello = encode_frame(header, {});
  ASSERT_EQ(::write(fd.get(), hello.data(), hello.size()), static_cast<ssize_t>(hello.size()));
  EXPECT_NE(read_to_end(fd.get()).find("protocol version: the peer speaks 2.0, this agent 1.0"), std::string::npos);
  Reader reader;
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  EXPECT_EQ(reader.read(peer, reader.scattered(16, 4096)).state, TransferState::kDone);
}

TEST(Process, NoiseAndHalfOpenSocketsDisturbNobody) {
  ServerProcess server(Settings{});
  const UniqueFd silent = raw_connect(server.endpoint());
  const UniqueFd noisy = raw_connect(server.endpoint());
  const std::string noise = "GET / HTTP/1.1\r\nHost: here and many more bytes than a header has\r\n\r\n";
  ASSERT_EQ(::write(noisy.get(), noise.data(), noise.size()), static_cast<ssize_t>(noise.size()));
  EXPECT_NE(read_to_end(noisy.get()).find("another program"), std::string::npos);
  Reader reader;
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  EXPECT_EQ(reader.read(peer, reader.scattered(16, 4096)).state, TransferState::kDone);
  EXPECT_EQ(read_to_end(silent.get()), "");  // closed after the handshake's time
}

TEST(Process, LostAndRepeatedFramesChangeNothing) {
  ServerProcess server(Settings{});
  std::mt19937 random(7);  // of the control thread
  Reader reader({.filter = [&random](FrameType type) {
    const bool chatter =
        type == FrameType::kNotify || type == FrameType::kWriteRequest || type == FrameType::kNotifyAck;
    if (!chatter) return FrameFate::kPass;
    const auto roll = random() % 4;
    return roll == 0 ? FrameFate::kDrop : roll == 1 ? FrameFate::kRepeat : FrameFate::kPass;
  }});
  const PeerId peer = reader.agent->connect(server.endpoint(), kLong);
  std::string expected;
  for (int i = 0; i < 15; ++i) {
    ASSERT_TRUE(reader.agent->notify(peer, "n" + std::to_string(i)).is_ok());
    expected += "decode:n" + std::to_string(i) + " ";
  }
  std::string got;
  EXPECT_TRUE(eventually([&] {
    got += server.ask("notifications");
    return got.size() >= expected.size();
  }));
  EXPECT_EQ(got, expected);
  for (int i = 0; i < 4; ++i) {
    fill(reader.memory.span(), 20 + i);
    const TransferId id = reader.agent->prepare_write(peer, {{reader.region, 0, 0, 0, kBytes, 0, 0, 1}});
    ASSERT_TRUE(reader.agent->post(id, kLong, "w" + std::to_string(i)).is_ok());
    EXPECT_EQ(reader.agent->wait(id, kLong).state, TransferState::kDone);
    EXPECT_EQ(server.ask("notifications"), "decode:w" + std::to_string(i) + " ");
    EXPECT_EQ(server.ask("checksum 0 " + std::to_string(kBytes)), std::to_string(reader.checksum()));
    EXPECT_TRUE(reader.agent->release(id).is_ok());
  }
  for (int i = 0; i < 5; ++i) ASSERT_EQ(server.ask("notify decode m" + std::to_string(i)), "0");
  std::vector<Notification> back;
  EXPECT_TRUE(eventually([&] {
    for (Notification& n : reader.agent->poll_notifications(10)) back.push_back(std::move(n));
    return back.size() >= 5;
  }));
  EXPECT_EQ(back.size(), 5u);
  EXPECT_EQ(back.front().payload, "m0");
}

TEST(Process, AForkedChildHasAClosedAgentAndKeepsNoSocket) {
  ServerProcess server(Settings{});
  auto reader = std::make_unique<Reader>();
  const PeerId peer = reader->agent->connect(server.endpoint(), kLong);
  const TransferId id = reader->agent->prepare_read(peer, reader->scattered(4, 4096));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool right = reader->agent->post(id, kLong, "").code == kNrtClosed && !reader->agent->healthy(nullptr);
    try {
      reader->agent->check(id);
      right = false;
    } catch (const Error& error) {
      right = right && error.kind() == ErrorKind::kClosed;
    }
    reader->agent.reset();
    ::pause();  // holds on to whatever it inherited until it is killed
    ::_exit(right ? 0 : 1);
  }
  ASSERT_TRUE(reader->agent->post(id, kLong, "").is_ok());
  EXPECT_EQ(reader->agent->wait(id, kLong).state, TransferState::kDone);
  EXPECT_TRUE(reader->agent->release(id).is_ok());
  reader.reset();
  EXPECT_TRUE(eventually([&] { return server.ask("peers") == "decode:down "; }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace nxl::kv
