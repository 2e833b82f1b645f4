// SPDX-License-Identifier: Apache-2.0
// Which process cma reads from, and what it says when the kernel does not let it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "kv/providers/cma_provider.h"
#include "nrt_abi.h"
#include "peer.h"

namespace nxl::kv {
namespace {

using namespace std::chrono_literals;

std::string refusal(const ChannelSetup& setup) {
  TestHost host;
  std::string why;
  return make_provider("cma", host)->open(setup, &why) ? "" : why;
}

TEST(Cma, StartTimeNamesOneProcess) {
  const auto mine = process_start_time(getpid());
  ASSERT_TRUE(mine);
  EXPECT_EQ(process_start_time(getpid()), mine);
  EXPECT_EQ(process_start_time(1).has_value(), true);
  EXPECT_LE(process_start_time(1), mine);
  EXPECT_FALSE(process_start_time(-5));
}

TEST(Cma, RefusesAnotherProcessThanThePeer) {
  PeerProcess peer({.provider = "cma"}), other({.provider = "cma"});
  EXPECT_EQ(refusal(peer.setup()), "");
  ChannelSetup setup = peer.setup();
  setup.pid = other.pid();
  EXPECT_NE(refusal(setup), "");  // the token is not there
  setup = peer.setup();
  setup.pid = 0;
  EXPECT_NE(refusal(setup).find("pid is known"), std::string::npos);
  setup = peer.setup();
  setup.unix_socket = false;
  EXPECT_NE(refusal(setup), "");
  for (const char* advertisement : {"", "x", "0123456789abcdef01234567"}) {
    setup = peer.setup();
    setup.advertisement = advertisement;
    EXPECT_NE(refusal(setup), "") << advertisement;
  }
  const pid_t gone = peer.pid();
  setup = peer.setup();
  peer.kill(SIGKILL);
  setup.pid = gone;
  EXPECT_NE(refusal(setup), "");
}

TEST(Cma, SaysWhatToDoWhenTheKernelForbidsIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  PeerProcess peer({.provider = "cma"});
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(1);
    const std::string why = refusal(peer.setup());
    _exit(write(ends[1], why.data(), why.size()) == static_cast<ssize_t>(why.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string why(4096, '\0');
  why.resize(static_cast<size_t>(std::max<ssize_t>(read(ends[0], why.data(), why.size()), 0)));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_NE(why.find("use shm or tcp"), std::string::npos) << why;
}

TEST(Cma, MemoryThatThePeerUnmappedIsAProviderFailure) {
  PeerProcess peer({.regions = {1 << 20}, .provider = "cma"});
  auto regions = std::make_shared<RemoteRegionMap>();
  auto hostile = std::make_shared<RemoteRegion>(*peer.setup().regions->at(0));
  hostile->address = 4096;  // never mapped
  regions->emplace(0, hostile);
  peer.setup().regions = regions;
  TestHost host;
  std::vector<std::byte> mine(1 << 20);
  host.add(mine);
  const auto provider = make_provider("cma", host);
  std::string why;
  const auto channel = provider->open(peer.setup(), &why);
  ASSERT_TRUE(channel) << why;
  Progress progress;
  const kv::Run run{.bytes = 1 << 20};
  const CopyResult result = channel->read({&run, 1}, progress, std::chrono::steady_clock::now() + 5s);
  EXPECT_EQ(result.status.code, NRT_FAILURE);
  EXPECT_EQ(result.cause, Cause::kProvider);
  EXPECT_NE(result.status.message.find("unmapped"), std::string::npos) << result.status.message;
}

}  // namespace
}  // namespace nxl::kv
