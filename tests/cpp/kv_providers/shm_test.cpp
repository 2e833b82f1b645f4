// SPDX-License-Identifier: Apache-2.0
// Descriptors of a hostile peer: whatever could end us with SIGBUS or show other memory is refused before it is mapped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "kv/providers/shm_provider.h"
#include "peer.h"

namespace nxl::kv {
namespace {

RemoteRegion region_of(int fd, uint64_t bytes, uint64_t offset = 0) {
  RemoteRegion region;
  region.bytes = bytes;
  region.fd = std::make_shared<UniqueFd>(dup(fd));
  region.fd_offset = offset;
  return region;
}

// The reason for which it was refused; empty when it was mapped.
std::string refusal(const RemoteRegion& region) {
  std::string why;
  return SharedMapping::map(region, &why) ? "" : why;
}

TEST(SharedMapping, MapsSealedMemoryAtAnyOffset) {
  const Pool pool(3 * 4096);
  fill_pattern(0, pool.bytes());
  for (const uint64_t offset : {0, 64, 4095, 4096, 8000}) {
    std::string why;
    const auto mapping = SharedMapping::map(region_of(pool.fd(), 3 * 4096 - offset, offset), &why);
    ASSERT_TRUE(mapping) << why;
    EXPECT_TRUE(std::ranges::equal(mapping->bytes(), pool.bytes().subspan(offset)));
  }
}

TEST(SharedMapping, RefusesWhatCouldBeCut) {
  const Pool open(8192, false);
  EXPECT_NE(refusal(region_of(open.fd(), 8192)).find("F_SEAL_SHRINK"), std::string::npos);
  ASSERT_EQ(fcntl(open.fd(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_NE(refusal(region_of(open.fd(), 8192)), "");
  ASSERT_EQ(fcntl(open.fd(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(refusal(region_of(open.fd(), 8192)), "");
}

TEST(SharedMapping, RefusesWhatIsSmallerThanItSays) {
  const Pool pool(8192);
  EXPECT_NE(refusal(region_of(pool.fd(), 8193)), "");
  EXPECT_NE(refusal(region_of(pool.fd(), 1, 8192)), "");
  EXPECT_NE(refusal(region_of(pool.fd(), 8192, UINT64_MAX - 100)), "");
  EXPECT_NE(refusal(region_of(pool.fd(), UINT64_MAX, 1)), "");
  EXPECT_NE(refusal(region_of(pool.fd(), 0)), "");
}

TEST(SharedMapping, RefusesOtherFiles) {
  char path[] = "/tmp/kv-shm-test-XXXXXX";
  const UniqueFd file(mkstemp(path));
  ASSERT_TRUE(file);
  unlink(path);
  ASSERT_EQ(ftruncate(file.get(), 8192), 0);
  EXPECT_NE(refusal(region_of(file.get(), 8192)), "");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  EXPECT_NE(refusal(region_of(reading.get(), 8192)), "");
  EXPECT_NE(refusal(RemoteRegion{}), "");
  const UniqueFd huge(memfd_create("kv-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge && ftruncate(huge.get(), 2 << 20) == 0 && fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
    EXPECT_NE(refusal(region_of(huge.get(), 8192)).find("ordinary pages"), std::string::npos);
  }
}

TEST(Shm, PeerThatCutItsFilesIsRefused) {
  PeerProcess peer({.regions = {1 << 20}, .provider = "shm", .sealed = false});
  peer.cut_files();
  TestHost host;
  std::string why;
  EXPECT_FALSE(make_provider("shm", host)->open(peer.setup(), &why));
  EXPECT_NE(why.find("F_SEAL_SHRINK"), std::string::npos) << why;
}

TEST(Shm, OnlyRegionsWithAGoodDescriptorAreReached) {
  PeerProcess peer({.regions = {4096, 4096}, .provider = "shm"});
  auto regions = std::make_shared<RemoteRegionMap>(*peer.setup().regions);
  auto hostile = std::make_shared<RemoteRegion>(*regions->at(1));
  hostile->bytes = 1 << 30;
  regions->at(1) = hostile;
  peer.setup().regions = regions;
  setenv("NEURON_LIBTORCH_LOG_LEVEL", "off", 1);
  TestHost host;
  std::vector<std::byte> mine(4096);
  host.add(mine);
  std::string why;
  const auto provider = make_provider("shm", host);
  const auto channel = provider->open(peer.setup(), &why);
  ASSERT_TRUE(channel) << why;
  EXPECT_TRUE(channel->reaches(*regions->at(0)));
  EXPECT_FALSE(channel->reaches(*regions->at(1)));
  const kv::Run run{.source_region = 1, .source_offset = 1 << 20, .bytes = 16};
  Progress progress;
  EXPECT_FALSE(channel->read({&run, 1}, progress, Deadline::max()).status.is_ok());
}

TEST(Shm, NeedsAUnixSocketAndALeaseTable) {
  PeerProcess peer({.provider = "shm"});
  TestHost host;
  const auto provider = make_provider("shm", host);
  std::string why;
  ChannelSetup setup = peer.setup();
  setup.unix_socket = false;
  EXPECT_FALSE(provider->open(setup, &why));
  EXPECT_NE(why.find("Unix socket"), std::string::npos);
  setup = peer.setup();
  setup.lease_table = nullptr;
  EXPECT_FALSE(provider->open(setup, &why));
  EXPECT_NE(why.find("lease table"), std::string::npos);
}

}  // namespace
}  // namespace nxl::kv
