// SPDX-License-Identifier: Apache-2.0
// nrt_async_sendrecv_*: order, limits, flush, close and faults, between cores of one process.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "sendrecv_ends.h"

namespace nxl::host::testing {
namespace {

TEST(SendRecv, MessagesMeetInOrderAndArriveWithTheirSize) {
  NXL_SENDRECV_PROCESS();
  const Pair pair;
  const std::vector<size_t> sizes = {1, 4096, 5000, 0, 3 << 20, 100};
  Memory source(4 << 20), target(4 << 20, 1);
  source.write(pattern(4 << 20, 1));
  std::vector<Request> sent, received;
  for (size_t i = 0; i < sizes.size(); ++i) sent.push_back(send(pair.sender, source, i * 7, sizes[i]));
  std::vector<Memory> targets;
  for (const size_t size : sizes) targets.emplace_back(size + 64, 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    received.push_back(receive(pair.receiver, targets[i], 32, sizes[i] + 32));  // a receive may be larger
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Outcome in = wait_done(received[i]), out = wait_done(sent[i]);
    EXPECT_EQ(NRT_SUCCESS, in.status);
    EXPECT_EQ(NRT_SUCCESS, out.status);
    EXPECT_EQ(sizes[i], in.size);
    EXPECT_EQ(sizes[i], out.size);
  }
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_flush(1));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(source.read(i * 7, sizes[i]), targets[i].read(32, sizes[i])) << sizes[i];
    EXPECT_EQ(std::vector<std::byte>(32, kBefore), targets[i].read(0, 32));
    EXPECT_EQ(std::vector<std::byte>(32, kBefore), targets[i].read(32 + sizes[i], 32));
  }
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_close(0));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_close(1));
}

TEST(SendRecv, ReceivedBytesAreThereAfterFlushOnly) {
  NXL_SENDRECV_PROCESS();
  const Pair pair;
  Memory source(10000), target(10000, 1);
  const auto data = pattern(10000, 2);
  source.write(data);
  const Request in = receive(pair.receiver, target, 0, 10000);
  wait_done(send(pair.sender, source, 0, 10000));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_flush(1));  // before the receive was seen to be done: covers nothing
  EXPECT_TRUE(wait_done(in).done);
  EXPECT_EQ(std::vector<std::byte>(4096, std::byte{0xA5}), target.read(10000 - 4096, 4096));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_flush(0));  // another core's
  EXPECT_NE(data, target.read(0, 10000));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_flush(1));
  EXPECT_EQ(data, target.read(0, 10000));
}

TEST(SendRecv, NothingMovesBeforeTheReceiveIsPosted) {
  NXL_SENDRECV_PROCESS({{"NEURON_LIBTORCH_HOST_SENDRECV_TIMEOUT_MS", "50"}});
  const Pair pair;
  Memory source(100), target(100, 1);
  const Request out = send(pair.sender, source, 0, 100);
  Outcome outcome;
  // The internal limit: TIMEOUT, and the request is still in flight.
  EXPECT_TRUE(eventually([&] { return (outcome = test_once(out)).status == NRT_TIMEOUT; }));
  EXPECT_FALSE(outcome.done);
  const Request in = receive(pair.receiver, target, 0, 100);
  EXPECT_EQ(NRT_SUCCESS, wait_done(in).status);
  EXPECT_TRUE(eventually([&] { return (outcome = test_once(out)).done; }));
  EXPECT_EQ(NRT_SUCCESS, outcome.status);
}

TEST(SendRecv, AFinishedRequestIsTestedOnce) {
  NXL_SENDRECV_PROCESS();
  const Pair pair;
  Memory source(100), target(100, 1);
  const Request in = receive(pair.receiver, target, 0, 100), out = send(pair.sender, source, 0, 100);
  wait_done(in);
  wait_done(out);
  EXPECT_EQ(NRT_INVALID_HANDLE, test_once(in).status);
  EXPECT_EQ(NRT_INVALID_HANDLE, test_once(out).status);
}

TEST(SendRecv, PendingLimitIsResourceUntilRequestsWereReported) {
  NXL_SENDRECV_PROCESS({{"NEURON_LIBTORCH_HOST_SENDRECV_PENDING", "2"}});
  int limit = 0;
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_get_max_num_pending_request(&limit));
  EXPECT_EQ(2, limit);
  const Pair pair;
  Memory source(100), target(100, 1);
  const Request first = receive(pair.receiver, target, 0, 10), second = receive(pair.receiver, target, 10, 10);
  Request third = nullptr;
  EXPECT_EQ(NRT_RESOURCE, nrt_async_sendrecv_recv_tensor(target.get(), 20, 10, pair.receiver, &third));
  wait_done(send(pair.sender, source, 0, 10));
  // It has arrived, but nobody was told: it still counts.
  EXPECT_EQ(NRT_RESOURCE, nrt_async_sendrecv_recv_tensor(target.get(), 20, 10, pair.receiver, &third));
  wait_done(first);
  third = receive(pair.receiver, target, 20, 10);
  wait_done(send(pair.sender, source, 0, 10));
  wait_done(second);
  wait_done(send(pair.sender, source, 0, 10));
  wait_done(third);
}

TEST(SendRecv, CommunicatorLimitIsPerCoreAndGivenBackByClose) {
  NXL_SENDRECV_PROCESS({{"NEURON_LIBTORCH_HOST_SENDRECV_COMMUNICATORS", "1"}});
  int limit = 0;
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_get_max_num_communicators_per_lnc(&limit));
  EXPECT_EQ(1, limit);
  const Pair pair;
  Comm more = nullptr;
  EXPECT_EQ(NRT_RESOURCE, nrt_async_sendrecv_connect(kHere, 1, 0, &more));
  EXPECT_EQ(NRT_RESOURCE, nrt_async_sendrecv_accept(kHere, 0, 1, &more));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_close(0));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_close(1));
  bool connected = false;
  EXPECT_EQ(NRT_INVALID_HANDLE, nrt_async_sendrecv_test_comm(pair.sender, &connected));
  const Pair again;
  EXPECT_NE(nullptr, again.sender);
}

TEST(SendRecv, CloseWithRequestsInFlightIsAnErrorForGood) {
  NXL_SENDRECV_PROCESS();
  const Pair pair;
  Memory source(100), target(100, 1);
  const Request in = receive(pair.receiver, target, 0, 100);
  EXPECT_EQ(NRT_FAILURE, nrt_async_sendrecv_close(1));
  EXPECT_EQ(NRT_FAILURE, nrt_async_sendrecv_init(1));
  // What was in flight is neither cancelled nor lost sight of.
  wait_done(send(pair.sender, source, 0, 100));
  EXPECT_EQ(NRT_SUCCESS, wait_done(in).status);
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_close(0));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_init(0));
}

TEST(SendRecv, CloseWithAnUnconnectedCommunicatorIsAnErrorForGood) {
  NXL_SENDRECV_PROCESS();
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_init(0));
  Comm comm = nullptr;
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_connect(kHere, 1, 0, &comm));
  bool connected = true;
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_test_comm(comm, &connected));
  EXPECT_FALSE(connected);
  Memory source(100);
  Request request = nullptr;
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_send_tensor(source.get(), 0, 100, comm, &request));
  EXPECT_EQ(NRT_FAILURE, nrt_async_sendrecv_close(0));
  EXPECT_EQ(NRT_FAILURE, nrt_async_sendrecv_init(0));
}

TEST(SendRecv, WrongArgumentsAreRefused) {
  NXL_SENDRECV_PROCESS();
  Comm comm = nullptr;
  Request request = nullptr;
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_init(7));  // not a core of this process
  EXPECT_EQ(NRT_UNINITIALIZED, nrt_async_sendrecv_connect(kHere, 1, 0, &comm));
  EXPECT_EQ(NRT_UNINITIALIZED, nrt_async_sendrecv_flush(0));
  EXPECT_EQ(NRT_UNINITIALIZED, nrt_async_sendrecv_close(0));
  const Pair pair;
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_init(0));
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_connect("localhost", 1, 0, &comm));
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_connect(nullptr, 1, 0, &comm));
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_connect(kHere, 64, 0, &comm));
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_connect(kHere, 1, 0, nullptr));
  Memory here(100), there(100, 1);
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_recv_tensor(here.get(), 0, 100, pair.sender, &request));   // one way
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_send_tensor(there.get(), 0, 100, pair.sender, &request));  // its core
  EXPECT_EQ(NRT_INVALID, nrt_async_sendrecv_send_tensor(here.get(), 60, 50, pair.sender, &request));   // its bounds
  EXPECT_EQ(NRT_INVALID_HANDLE, nrt_async_sendrecv_send_tensor(here.get(), 0, 1, nullptr, &request));
}

TEST(SendRecv, ATooSmallReceiveFailsBothEndsAndTheNextOnesWork) {
  NXL_SENDRECV_PROCESS();
  const Pair pair;
  Memory source(100), target(100, 1);
  source.write(pattern(100, 3));
  const Request small = receive(pair.receiver, target, 0, 10), next = receive(pair.receiver, target, 0, 100);
  const Request large = send(pair.sender, source, 0, 11), good = send(pair.sender, source, 0, 100);
  EXPECT_EQ(NRT_INVALID, wait_done(small).status);
  EXPECT_EQ(NRT_INVALID, wait_done(large).status);
  EXPECT_EQ(NRT_SUCCESS, wait_done(next).status);
  EXPECT_EQ(NRT_SUCCESS, wait_done(good).status);
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_flush(1));
  EXPECT_EQ(source.read(0, 100), target.read(0, 100));
}

TEST(SendRecv, ATensorFreedInFlightKeepsItsMemory) {
  NXL_SENDRECV_PROCESS();
  const Pair pair;
  const uint64_t before = memory_used(1);
  Request in = nullptr;
  {
    Memory target(1 << 20, 1);
    in = receive(pair.receiver, target, 0, 1 << 20);
  }
  EXPECT_LE(before + (1 << 20), memory_used(1));
  Memory source(1 << 20);
  wait_done(send(pair.sender, source, 0, 1 << 20));
  wait_done(in);
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_flush(1));
  EXPECT_EQ(before, memory_used(1));
}

TEST(SendRecv, FaultsOfCallsAndOfMessages) {
  NXL_SENDRECV_PROCESS({{"NEURON_LIBTORCH_HOST_FAULTS",
                         "nrt_async_sendrecv_flush:HW_ERROR@1,sendrecv:EXEC_HW_ERR_DMA_ABORT@1,sendrecv:INVALID@2,"
                         "sendrecv:TIMEOUT@3,delay_ms:sendrecv=5"},
                        {"NEURON_LIBTORCH_HOST_SENDRECV_TIMEOUT_MS", "30"}});
  const Pair pair;
  Memory source(100), target(100, 1);
  source.write(pattern(100, 4));
  std::vector<Request> in, out;
  for (int i = 0; i < 3; ++i) {
    in.push_back(receive(pair.receiver, target, 0, 100));
    out.push_back(send(pair.sender, source, 0, 100));
  }
  EXPECT_EQ(NRT_EXEC_HW_ERR_DMA_ABORT, wait_done(in[0]).status);
  EXPECT_EQ(NRT_EXEC_HW_ERR_DMA_ABORT, wait_done(out[0]).status);
  const Outcome cut = wait_done(in[1]);  // one byte short, and said to be done
  EXPECT_EQ(NRT_SUCCESS, cut.status);
  EXPECT_EQ(99u, cut.size);
  EXPECT_EQ(NRT_SUCCESS, wait_done(out[1]).status);
  EXPECT_EQ(NRT_HW_ERROR, nrt_async_sendrecv_flush(1));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_flush(1));
  EXPECT_EQ(source.read(0, 99), target.read(0, 99));
  for (const Request stuck : {in[2], out[2]}) {
    Outcome outcome;
    EXPECT_TRUE(eventually([&] { return (outcome = test_once(stuck)).status == NRT_TIMEOUT; }));
    EXPECT_FALSE(outcome.done);
  }
  EXPECT_EQ(NRT_FAILURE, nrt_async_sendrecv_close(1));
}

TEST(SendRecv, AfterCloseOfTheRuntimeEveryCallIsClosed) {
  NXL_SENDRECV_PROCESS();
  const Pair pair;
  Memory target(100, 1);
  const Request in = receive(pair.receiver, target, 0, 100);
  nrt_close();
  EXPECT_EQ(NRT_CLOSED, test_once(in).status);
  EXPECT_EQ(NRT_CLOSED, nrt_async_sendrecv_flush(1));
  EXPECT_EQ(NRT_CLOSED, nrt_async_sendrecv_init(0));
}

}  // namespace
}  // namespace nxl::host::testing
