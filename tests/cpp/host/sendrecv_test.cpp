// SPDX-License-Identifier: Apache-2.0
// nrt_async_sendrecv_*: order, limits, flush, close and faults, between cores of one process and of two.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device.h"

namespace nxl::host::testing {
namespace {

using Comm = nrt_async_sendrecv_comm_t*;
using Request = nrt_async_sendrecv_request_t*;
constexpr const char* kHere = "127.0.0.1";
constexpr std::byte kBefore{0x11};

// A folder of its own for claims and rendezvous, so that tests of other processes are not met.
class Folder {
 public:
  Folder() { EXPECT_NE(nullptr, mkdtemp(path_.data())); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/nxl-sendrecv-XXXXXX";
};

bool eventually(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

bool wait_connected(Comm comm) {
  return eventually([&] {
    bool connected = false;
    const NRT_STATUS status = nrt_async_sendrecv_test_comm(comm, &connected);
    return connected || status != NRT_SUCCESS;
  });
}

struct Outcome {
  NRT_STATUS status = NRT_SUCCESS;
  bool done = false;
  size_t size = 0;
};

Outcome test_once(Request request) {
  Outcome outcome;
  outcome.status = nrt_async_sendrecv_test_request(request, &outcome.done, &outcome.size);
  return outcome;
}

Outcome wait_done(Request request) {
  Outcome outcome;
  EXPECT_TRUE(eventually([&] {
    outcome = test_once(request);
    return outcome.done || (outcome.status != NRT_SUCCESS && outcome.status != NRT_TIMEOUT);
  }));
  EXPECT_TRUE(outcome.done);
  return outcome;
}

std::vector<std::byte> pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 2654435761u + seed * 97 + (i >> 9)) >> 3);
  return data;
}

class Memory {
 public:
  explicit Memory(size_t bytes, int core = 0) : tensor_(bytes, core) { fill(kBefore); }
  nrt_tensor_t* get() const { return tensor_.get(); }
  size_t bytes() const { return nrt_tensor_get_size(get()); }
  void fill(std::byte value) { EXPECT_EQ(NRT_SUCCESS, nrt_tensor_memset(get(), 0, static_cast<int>(value), bytes())); }
  void write(const std::vector<std::byte>& data, size_t offset = 0) {
    EXPECT_EQ(NRT_SUCCESS, nrt_tensor_write(get(), data.data(), offset, data.size()));
  }
  std::vector<std::byte> read(size_t offset, size_t bytes) const {
    std::vector<std::byte> data(bytes);
    EXPECT_EQ(NRT_SUCCESS, nrt_tensor_read(get(), data.data(), offset, bytes));
    return data;
  }

 private:
  DeviceTensor tensor_;
};

Request send(Comm comm, const Memory& memory, size_t offset, size_t bytes) {
  Request request = nullptr;
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_send_tensor(memory.get(), offset, bytes, comm, &request));
  return request;
}

Request receive(Comm comm, const Memory& memory, size_t offset, size_t bytes) {
  Request request = nullptr;
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_recv_tensor(memory.get(), offset, bytes, comm, &request));
  return request;
}

// Cores 0 and 1 of this process, connected one way.
struct Pair {
  Pair() {
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_init(0));
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_init(1));
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_connect(kHere, 1, 0, &sender));
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_accept(kHere, 0, 1, &receiver));
    EXPECT_TRUE(wait_connected(sender));
    EXPECT_TRUE(wait_connected(receiver));
  }
  Comm sender = nullptr, receiver = nullptr;
};

Environment variables(Environment environment = {}) { return environment; }

// The rest of the test's body runs in a new process, with an open runtime and a claim folder of its own.
#define NXL_SENDRECV_PROCESS(...)                                         \
  if (!in_fresh_process()) {                                              \
    const Folder folder;                                                  \
    Environment environment = variables(__VA_ARGS__);                     \
    environment["NEURON_LIBTORCH_HOST_CLAIM_DIR"] = folder.path();        \
    ASSERT_EQ(0, wait_for_exit(start_self(current_test(), environment))); \
    return;                                                               \
  }                                                                       \
  open_runtime()

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

// Two processes. The first one is this test; the second one is another instance of it with NXL_TEST_ROLE set.
const char* role() { return std::getenv("NXL_TEST_ROLE"); }

struct Second {
  explicit Second(Environment environment) {
    environment["NXL_TEST_ROLE"] = "second";
    pid = start_self(current_test(), environment);
  }
  ~Second() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    wait_for_exit(pid);
  }
  int join() { return wait_for_exit(std::exchange(pid, -1)); }
  pid_t pid;
};

constexpr size_t kLarge = 5 << 20;

// Core `own` of this process, connected both ways with core `peer` of the other one.
struct BothWays {
  BothWays(int own, int peer) {
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_init(own));
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_connect(kHere, peer, own, &out));
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_accept(kHere, peer, own, &in));
    EXPECT_TRUE(wait_connected(out) && wait_connected(in));
  }
  Comm out = nullptr, in = nullptr;
};

void echo_between(int own, int peer, bool first) {
  open_runtime();
  uint32_t id = 0;
  EXPECT_EQ(NRT_SUCCESS, nrt_host_device_id_get(0, &id));
  EXPECT_EQ(static_cast<uint32_t>(own), id);
  BothWays comms(own, peer);
  Memory memory(kLarge);
  const auto data = pattern(kLarge, 5);
  for (int round = 0; round < 3; ++round) {
    if (first) {
      memory.write(data);
      EXPECT_EQ(NRT_SUCCESS, wait_done(send(comms.out, memory, 0, kLarge)).status);
      memory.fill(kBefore);
    }
    EXPECT_EQ(kLarge, wait_done(receive(comms.in, memory, 0, kLarge)).size);
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_flush(own));
    EXPECT_EQ(data, memory.read(0, kLarge));
    if (!first) {
      EXPECT_EQ(NRT_SUCCESS, wait_done(send(comms.out, memory, 0, kLarge)).status);
    }
  }
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_close(own));
}

Environment with_core(const std::string& core, const std::string& folder, Environment more = {}) {
  more["NEURON_RT_VISIBLE_CORES"] = core;
  more["NEURON_LIBTORCH_HOST_CLAIM_DIR"] = folder;
  return more;
}

TEST(SendRecv, TwoProcessesOverSharedMemory) {
  if (in_fresh_process()) return echo_between(role() ? 3 : 2, role() ? 2 : 3, !role());
  const Folder folder;
  Second second(with_core("3", folder.path()));
  EXPECT_EQ(0, wait_for_exit(start_self(current_test(), with_core("2", folder.path()))));
  EXPECT_EQ(0, second.join());
}

// Processes that do not see each other's claim folders, as in two containers, meet over TCP.
TEST(SendRecv, TwoProcessesOverTcp) {
  if (in_fresh_process()) return echo_between(role() ? 5 : 4, role() ? 4 : 5, !role());
  const std::string port = std::to_string(20000 + getpid() % 10000);
  const Environment tcp = {{"NEURON_LIBTORCH_HOST_SENDRECV_BIND", kHere}, {"NEURON_LIBTORCH_HOST_SENDRECV_PORT", port}};
  const Folder one, other;
  Second second(with_core("5", one.path(), tcp));
  EXPECT_EQ(0, wait_for_exit(start_self(current_test(), with_core("4", other.path(), tcp))));
  EXPECT_EQ(0, second.join());
}

TEST(SendRecv, ACoreBelongsToOneProcess) {
  if (in_fresh_process()) {
    open_runtime();
    const NRT_STATUS status = nrt_async_sendrecv_init(0);
    if (role()) {
      EXPECT_EQ(NRT_EXEC_NC_BUSY, status);
      return;
    }
    ASSERT_EQ(NRT_SUCCESS, status);
    Second second({});  // private cores, so the runtime itself opens; its core 0 is ours
    EXPECT_EQ(0, second.join());
    return;
  }
  const Folder folder;
  EXPECT_EQ(0, wait_for_exit(start_self(current_test(), {{"NEURON_LIBTORCH_HOST_CLAIM_DIR", folder.path()}})));
}

TEST(SendRecv, AKilledPeerFailsWhatIsInFlightAndTheCoreCanBeClosed) {
  if (in_fresh_process() && role()) {
    open_runtime();
    BothWays comms(3, 2);
    Memory memory(100);
    wait_done(send(comms.out, memory, 0, 100));
    pause();
    return;
  }
  if (!in_fresh_process()) {
    const Folder folder;
    EXPECT_EQ(0, wait_for_exit(start_self(current_test(), with_core("2", folder.path()))));
    return;
  }
  Second second(with_core("3", std::getenv("NEURON_LIBTORCH_HOST_CLAIM_DIR")));
  open_runtime();
  BothWays comms(2, 3);
  Memory memory(200);
  EXPECT_EQ(NRT_SUCCESS, wait_done(receive(comms.in, memory, 0, 100)).status);
  const Request in = receive(comms.in, memory, 0, 100), out = send(comms.out, memory, 100, 100);
  EXPECT_FALSE(test_once(in).done);
  kill(second.pid, SIGKILL);
  EXPECT_EQ(NRT_NETWORK_PROXY_FAILURE, wait_done(in).status);
  EXPECT_EQ(NRT_NETWORK_PROXY_FAILURE, wait_done(out).status);
  bool connected = true;
  EXPECT_EQ(NRT_NETWORK_PROXY_FAILURE, nrt_async_sendrecv_test_comm(comms.in, &connected));
  Request late = nullptr;
  EXPECT_EQ(NRT_NETWORK_PROXY_FAILURE, nrt_async_sendrecv_send_tensor(memory.get(), 0, 1, comms.out, &late));
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_close(2));
}

TEST(SendRecv, AForkedChildKeepsNoConnection) {
  NXL_SENDRECV_PROCESS();
  const Pair pair;
  Memory target(100, 1);
  const Request in = receive(pair.receiver, target, 0, 100);
  const pid_t child = fork();
  if (child == 0) _exit(nrt_async_sendrecv_flush(0) == NRT_CLOSED ? 0 : 1);
  EXPECT_EQ(0, wait_for_exit(child));
  Memory source(100);
  wait_done(send(pair.sender, source, 0, 100));  // the parent's are as they were
  EXPECT_EQ(NRT_SUCCESS, wait_done(in).status);
}

}  // namespace
}  // namespace nxl::host::testing
