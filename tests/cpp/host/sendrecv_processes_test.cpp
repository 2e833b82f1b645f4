// SPDX-License-Identifier: Apache-2.0
// nrt_async_sendrecv_* between two processes: both transports, a core of another process, a killed peer, a fork.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sendrecv_ends.h"

namespace nxl::host::testing {
namespace {

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
