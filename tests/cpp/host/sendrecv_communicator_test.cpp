// SPDX-License-Identifier: Apache-2.0
// A communicator against an other end that breaks off or breaks the rules.
#include "host/sendrecv_communicator.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

namespace nxl::host {
namespace {

struct WireFrame {
  uint32_t type, slot;
  uint64_t value;
};
constexpr uint32_t kReady = 1, kDone = 3, kData = 4, kChunk = 5, kAbort = 7;

// A receive of 10000 bytes on one end of a socket pair; the test is the sender.
struct Receiving {
  Receiving() {
    int sockets[2];
    EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets));
    peer.reset(sockets[0]);
    communicator->connected(fork_closed(sockets[1]), nullptr);
    auto storage = std::make_shared<Storage>();
    storage->address = memory.data();
    storage->bytes = memory.size();
    request->communicator = communicator;
    request->view = {storage, memory.data(), memory.size()};
    communicator->post(request);
    while (communicator->advance()) {
    }
    WireFrame ready{};
    EXPECT_EQ(static_cast<ssize_t>(sizeof(ready)), ::recv(peer.get(), &ready, sizeof(ready), 0));
    EXPECT_EQ(kReady, ready.type);
    EXPECT_EQ(memory.size(), ready.value);
  }
  void send(const WireFrame& frame) { send(std::as_bytes(std::span(&frame, 1))); }
  void send(std::span<const std::byte> bytes) {
    EXPECT_EQ(static_cast<ssize_t>(bytes.size()), ::send(peer.get(), bytes.data(), bytes.size(), 0));
    while (communicator->advance()) {
    }
  }

  std::vector<std::byte> memory = std::vector<std::byte>(10000, std::byte{1});
  std::shared_ptr<Communicator> communicator = std::make_shared<Communicator>(false, 0, "127.0.0.1", 1);
  SendRecvRequestPtr request = std::make_shared<SendRecvRequest>();
  UniqueFd peer;
};

TEST(SendRecvCommunicator, AMessageThatBreaksOffFailsAndLeavesNothingToFlush) {
  Receiving receiving;
  receiving.send(WireFrame{kData, 0, 10000});
  receiving.send(WireFrame{kChunk, 0, 10000});
  receiving.send(std::vector<std::byte>(9000, std::byte{2}));
  EXPECT_FALSE(receiving.request->finished);
  EXPECT_EQ(kHeldBytes, receiving.request->held.size());
  receiving.peer.reset();
  while (receiving.communicator->advance()) {
  }
  EXPECT_EQ(Communicator::State::kBroken, receiving.communicator->state());
  EXPECT_TRUE(receiving.request->finished);
  EXPECT_EQ(NRT_NETWORK_PROXY_FAILURE, receiving.request->status);
  EXPECT_TRUE(receiving.request->held.empty());
  EXPECT_EQ(nullptr, receiving.request->view.storage);
}

TEST(SendRecvCommunicator, FramesOutOfTurnEndTheConnectionOnly) {
  const std::vector<WireFrame> wrong = {{kData, 0, 10001},  // more than was announced
                                        {kChunk, 0, 10},    // of no message
                                        {kDone, 0, 0},      // is the sender's to get
                                        {kAbort, 0, 0},     // success is no reason
                                        {kAbort, 0, uint64_t{1} << 40},
                                        {99, 0, 0}};
  for (const WireFrame& frame : wrong) {
    Receiving receiving;
    receiving.send(frame);
    EXPECT_EQ(Communicator::State::kBroken, receiving.communicator->state()) << frame.type;
    EXPECT_EQ(NRT_NETWORK_PROXY_FAILURE, receiving.request->status) << frame.type;
    EXPECT_EQ(std::vector<std::byte>(10000, std::byte{1}), receiving.memory) << frame.type;
  }
}

TEST(SendRecvCommunicator, AChunkLargerThanItsMessageEndsTheConnection) {
  Receiving receiving;
  receiving.send(WireFrame{kData, 0, 100});
  receiving.send(WireFrame{kChunk, 0, 101});
  EXPECT_EQ(Communicator::State::kBroken, receiving.communicator->state());
}

}  // namespace
}  // namespace nxl::host
