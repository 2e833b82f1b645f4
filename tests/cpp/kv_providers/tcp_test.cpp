// SPDX-License-Identifier: Apache-2.0
// Data connections against hostile ends: readers that break rules, and servers that lie.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "core/crc32c.h"
#include "kv/auth.h"
#include "kv/providers/tcp_frames.h"
#include "nrt_abi.h"
#include "peer.h"

namespace nxl::kv {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Deadline soon() { return std::chrono::steady_clock::now() + 10s; }

sockaddr_in loopback_at(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void send_bytes(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the other end has had enough
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

struct RawFrame {
  DataHeader header;
  Bytes body;
};

// Empty at the end of the stream.
std::optional<RawFrame> receive_frame(int fd) {
  std::array<std::byte, kDataHeaderBytes> raw;
  if (::recv(fd, raw.data(), raw.size(), MSG_WAITALL) != static_cast<ssize_t>(raw.size())) return std::nullopt;
  RawFrame frame{decode_header(raw), {}};
  frame.body.resize(frame.header.body_bytes);
  if (!frame.body.empty() &&
      ::recv(fd, frame.body.data(), frame.body.size(), MSG_WAITALL) != static_cast<ssize_t>(frame.body.size())) {
    return std::nullopt;
  }
  return frame;
}

// A hand-made reader.
class RawReader {
 public:
  explicit RawReader(const ChannelSetup& setup) : setup_(setup), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = loopback_at(static_cast<uint16_t>(std::stoi(setup.advertisement)));
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience{10, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  void send(std::span<const std::byte> bytes) { send_bytes(fd_.get(), bytes); }
  std::optional<RawFrame> receive() { return receive_frame(fd_.get()); }

  // False when the server hung up before or instead.
  bool prove(const Secret& secret) {
    Bytes hello(sizeof(uint64_t) + sizeof(Nonce));
    std::memcpy(hello.data(), &setup_.session, sizeof(uint64_t));
    send(encode_data_frame(DataFrame::kHello, 0, hello));
    const auto challenge = receive();
    if (!challenge) return false;
    Nonce own{}, theirs;
    std::memcpy(theirs.data(), challenge->body.data(), sizeof(theirs));
    const Sha256Digest proof = data_proof(secret, setup_.session, false, true, own, theirs);
    send(encode_data_frame(DataFrame::kProof, 0, std::as_bytes(std::span(proof))));
    return true;
  }

  // What the server answers to a word request: proof that it serves this connection.
  bool is_served(uint64_t sequence = 1) {
    const uint64_t index = 0;
    send(encode_data_frame(DataFrame::kWord, sequence, std::as_bytes(std::span(&index, 1))));
    const auto answer = receive();
    return answer && answer->header.type == DataFrame::kStatus && decode_status(answer->body).word == 1;
  }

 private:
  const ChannelSetup& setup_;
  UniqueFd fd_;
};

ReadRequest request_for(const PeerProcess& peer, const kv::Run& run) {
  const RemoteRegion& region = *peer.setup().regions->at(0);
  return {{{region.index, region.key}}, {run}};
}

TEST(TcpServer, HangsUpOnWhoeverBreaksARuleAndServesTheOthers) {
  const PeerProcess peer({.provider = "tcp"});
  const Secret& secret = peer.setup().secret;
  const Bytes good_read = encode_data_frame(DataFrame::kRead, 1, encode_read(request_for(peer, {.bytes = 16})));
  RawReader bystander(peer.setup());
  ASSERT_TRUE(bystander.prove(secret));
  uint64_t served = 0;

  const std::pair<const char*, std::function<void(RawReader&)>> cases[] = {
      {"noise", [](RawReader& reader) { reader.send(Bytes(4096, std::byte{0x55})); }},
      {"a request before any proof", [&](RawReader& reader) { reader.send(good_read); }},
      {"a proof without a hello",
       [](RawReader& reader) { reader.send(encode_data_frame(DataFrame::kProof, 0, Bytes(32))); }},
      {"an unknown session",
       [](RawReader& reader) { reader.send(encode_data_frame(DataFrame::kHello, 0, Bytes(40))); }},
      {"a short hello", [](RawReader& reader) { reader.send(encode_data_frame(DataFrame::kHello, 0, Bytes(3))); }},
      {"a wrong secret", [](RawReader& reader) { reader.prove(Secret{1}); }},
      {"an empty proof",
       [&](RawReader& reader) {
         Bytes hello(40);
         std::memcpy(hello.data(), &peer.setup().session, sizeof(uint64_t));
         reader.send(encode_data_frame(DataFrame::kHello, 0, hello));
         EXPECT_TRUE(reader.receive());
         reader.send(encode_data_frame(DataFrame::kProof, 0, {}));
       }},
      {"a damaged header",
       [&](RawReader& reader) {
         reader.prove(secret);
         Bytes frame = good_read;
         frame[9] ^= std::byte{1};
         reader.send(frame);
       }},
      {"a damaged body",
       [&](RawReader& reader) {
         reader.prove(secret);
         Bytes frame = good_read;
         frame.back() ^= std::byte{1};
         reader.send(frame);
       }},
      {"a sequence out of step",
       [&](RawReader& reader) {
         reader.prove(secret);
         reader.send(encode_data_frame(DataFrame::kRead, 2, encode_read(request_for(peer, {.bytes = 16}))));
       }},
      {"a body over the limit",
       [&](RawReader& reader) {
         reader.prove(secret);
         reader.send(encode_header({DataFrame::kRead, 0, 1, UINT32_MAX, 0}));
       }},
      {"a request for too much",
       [&](RawReader& reader) {
         reader.prove(secret);
         reader.send(encode_data_frame(
             DataFrame::kRead, 1, encode_read(request_for(peer, {.bytes = kMaxRequestBytes, .count = UINT32_MAX}))));
       }},
      {"a frame that only a server sends",
       [&](RawReader& reader) {
         reader.prove(secret);
         reader.send(encode_data_frame(DataFrame::kData, 1, Bytes(16)));
       }},
  };
  for (const auto& [name, offend] : cases) {
    RawReader reader(peer.setup());
    offend(reader);
    while (reader.receive()) {
    }  // until the server hangs up; the receive time-out would be a failure below
    EXPECT_FALSE(reader.is_served()) << name;
    ASSERT_TRUE(bystander.is_served(++served)) << name;
  }
}

TEST(TcpServer, RefusesRequestsThatItMayNotServeAndKeepsTheConnection) {
  PeerProcess peer({.regions = {4096}, .provider = "tcp"});
  RawReader reader(peer.setup());
  ASSERT_TRUE(reader.prove(peer.setup().secret));
  uint64_t sequence = 0;
  const auto outcome = [&](const ReadRequest& request) {
    reader.send(encode_data_frame(DataFrame::kRead, ++sequence, encode_read(request)));
    for (;;) {
      const auto frame = reader.receive();
      if (!frame) return RequestStatus{-1, Cause::kPeerLost, 0, "hung up"};
      if (frame->header.type == DataFrame::kStatus) return decode_status(frame->body);
    }
  };
  EXPECT_EQ(outcome(request_for(peer, {.bytes = 4096})).code, 0);
  EXPECT_EQ(outcome(request_for(peer, {.bytes = 4097})).cause, Cause::kRefused);
  EXPECT_EQ(outcome(request_for(peer, {.source_offset = UINT64_MAX, .bytes = 2})).cause, Cause::kRefused);
  EXPECT_EQ(outcome(request_for(peer, {.bytes = 2, .source_stride = UINT64_MAX, .count = 3})).cause, Cause::kRefused);
  ReadRequest request = request_for(peer, {.bytes = 1});
  request.regions[0].key[1] ^= 1;
  const RequestStatus wrong_key = outcome(request);
  EXPECT_EQ(wrong_key.cause, Cause::kRefused);
  EXPECT_NE(wrong_key.text.find("wrong key"), std::string::npos);
  request = request_for(peer, {.bytes = 1});
  request.regions[0].index = 5;
  EXPECT_EQ(outcome(request).code, NRT_INVALID_HANDLE);
  peer.remove_region(0);
  EXPECT_EQ(outcome(request_for(peer, {.bytes = 1})).code, NRT_INVALID_HANDLE);
}

TEST(TcpServer, EndOfTheSessionEndsItsConnections) {
  PeerProcess peer({.provider = "tcp"});
  RawReader reader(peer.setup());
  ASSERT_TRUE(reader.prove(peer.setup().secret));
  ASSERT_TRUE(reader.is_served(1));
  peer.end_session();
  EXPECT_FALSE(reader.is_served(2));
  RawReader late(peer.setup());
  EXPECT_FALSE(late.prove(peer.setup().secret));
}

// A server that knows the secret, serves one connection, and answers the first request as it likes.
class LyingServer {
 public:
  using Answer = std::function<void(int fd, uint64_t sequence)>;

  explicit LyingServer(Answer answer) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback_at(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    auto region = std::make_shared<RemoteRegion>();
    region->bytes = 4096;
    region->readable = true;
    auto regions = std::make_shared<RemoteRegionMap>();
    regions->emplace(0, region);
    setup.regions = regions;
    setup.session = 9;
    setup.secret = {1, 2, 3};
    setup.initiator = true;
    setup.unix_socket = true;
    setup.advertisement = std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this, answer] { serve(answer); });
  }
  ~LyingServer() { thread_.join(); }

  ChannelSetup setup;
  bool knows_secret = true;

 private:
  void serve(const Answer& answer) {
    const UniqueFd fd(::accept(listener_.get(), nullptr, nullptr));
    const auto hello = receive_frame(fd.get());
    if (!hello) return;
    Nonce reader, own{};
    std::memcpy(reader.data(), hello->body.data() + sizeof(uint64_t), sizeof(reader));
    const Secret known = knows_secret ? setup.secret : Secret{};
    const Sha256Digest proof = data_proof(known, setup.session, true, true, reader, own);
    Bytes challenge(sizeof(own) + sizeof(proof));
    std::memcpy(challenge.data() + sizeof(own), proof.data(), sizeof(proof));
    send_bytes(fd.get(), encode_data_frame(DataFrame::kChallenge, 0, challenge));
    if (!receive_frame(fd.get())) return;
    const auto request = receive_frame(fd.get());
    if (!request) return;
    answer(fd.get(), request->header.sequence);
    ::shutdown(fd.get(), SHUT_WR);
    while (receive_frame(fd.get())) {
    }
  }

  UniqueFd listener_;
  std::thread thread_;
};

CopyResult read_page(const LyingServer& server, bool checksum, std::vector<std::byte>* page) {
  TestHost host;
  host.checksum = checksum;
  page->assign(4096 + 64, std::byte{0xA5});
  host.add(std::span(*page).first(4096));
  const auto provider = make_provider("tcp", host);
  std::string why;
  const auto channel = provider->open(server.setup, &why);
  EXPECT_TRUE(channel) << why;
  const kv::Run run{.bytes = 4096};
  Progress progress;
  return channel->read({&run, 1}, progress, soon());
}

Bytes done(uint64_t sequence) {
  return encode_data_frame(DataFrame::kStatus, sequence, encode_status({0, Cause::kNone, 0, ""}));
}

Bytes data_frame(uint64_t sequence, size_t bytes, uint16_t flags = 0, uint32_t crc_error = 0) {
  const Bytes body(bytes, std::byte{0x11});
  const auto header = encode_header(
      {DataFrame::kData, flags, sequence, static_cast<uint32_t>(bytes), flags != 0 ? crc32c(body) ^ crc_error : 0});
  Bytes frame(header.size() + body.size());
  std::ranges::copy(header, frame.begin());
  std::ranges::copy(body, frame.begin() + header.size());
  return frame;
}

TEST(TcpReader, ProtocolBreachesOfTheServerAreIntegrityFailures) {
  const std::pair<const char*, LyingServer::Answer> cases[] = {
      {"more data than asked for", [](int fd, uint64_t s) { send_bytes(fd, data_frame(s, 4097)); }},
      {"done although bytes are missing",
       [](int fd, uint64_t s) {
         send_bytes(fd, data_frame(s, 4095));
         send_bytes(fd, done(s));
       }},
      {"data of another request", [](int fd, uint64_t s) { send_bytes(fd, data_frame(s + 1, 4096)); }},
      {"an empty data frame", [](int fd, uint64_t s) { send_bytes(fd, data_frame(s, 0)); }},
      {"more data after the last",
       [](int fd, uint64_t s) {
         send_bytes(fd, data_frame(s, 4096));
         send_bytes(fd, data_frame(s, 1));
       }},
      {"noise", [](int fd, uint64_t) { send_bytes(fd, Bytes(64, std::byte{0x77})); }},
      {"a frame that only a reader sends",
       [](int fd, uint64_t s) { send_bytes(fd, encode_data_frame(DataFrame::kProof, s, Bytes(32))); }},
      {"a malformed status",
       [](int fd, uint64_t s) { send_bytes(fd, encode_data_frame(DataFrame::kStatus, s, Bytes(5))); }},
  };
  for (const auto& [name, answer] : cases) {
    LyingServer server(answer);
    Bytes page;
    const CopyResult result = read_page(server, false, &page);
    EXPECT_FALSE(result.status.is_ok()) << name;
    EXPECT_EQ(result.cause, Cause::kIntegrity) << name << ": " << result.status.message;
    EXPECT_TRUE(std::ranges::all_of(std::span(page).subspan(4096), [](std::byte b) { return b == std::byte{0xA5}; }))
        << name;
  }
}

TEST(TcpReader, ChecksumMismatchIsAnIntegrityFailure) {
  for (const uint32_t error : {0u, 1u}) {
    LyingServer server([error](int fd, uint64_t s) {
      send_bytes(fd, data_frame(s, 1000, kDataFlagChecksum));
      send_bytes(fd, data_frame(s, 3096, kDataFlagChecksum, error));
      send_bytes(fd, done(s));
    });
    Bytes page;
    const CopyResult result = read_page(server, true, &page);
    EXPECT_EQ(result.cause, error != 0 ? Cause::kIntegrity : Cause::kNone) << result.status.message;
  }
  LyingServer without([](int fd, uint64_t s) { send_bytes(fd, data_frame(s, 4096)); });
  Bytes page;
  EXPECT_EQ(read_page(without, true, &page).cause, Cause::kIntegrity);
}

TEST(TcpReader, RefusalsAndLossesKeepTheirCause) {
  Bytes page;
  {
    LyingServer server([](int fd, uint64_t s) {
      send_bytes(
          fd, encode_data_frame(DataFrame::kStatus, s, encode_status({NRT_RESOURCE, Cause::kRefused, 0, "not today"})));
    });
    const CopyResult result = read_page(server, false, &page);
    EXPECT_EQ(result.cause, Cause::kRefused);
    EXPECT_EQ(result.status.code, NRT_RESOURCE);
    EXPECT_NE(result.status.message.find("not today"), std::string::npos);
  }
  {
    LyingServer server([](int fd, uint64_t s) { send_bytes(fd, data_frame(s, 100)); });
    EXPECT_EQ(read_page(server, false, &page).cause, Cause::kPeerLost);
  }
  {
    LyingServer server([](int, uint64_t) {});
    server.knows_secret = false;
    EXPECT_EQ(read_page(server, false, &page).cause, Cause::kRefused);
  }
}

TEST(TcpReader, RefusesMalformedAdvertisements) {
  TestHost host;
  const auto provider = make_provider("tcp", host);
  for (const char* advertisement : {"", "0", "65536", "-1", "80x", "/6", "99999999999999999999", "80/6x"}) {
    ChannelSetup setup;
    setup.unix_socket = true;
    setup.advertisement = advertisement;
    std::string why;
    EXPECT_FALSE(provider->open(setup, &why)) << advertisement;
    EXPECT_NE(why, "") << advertisement;
  }
}

}  // namespace
}  // namespace nxl::kv
