// SPDX-License-Identifier: Apache-2.0
// Device memory: accounting, limits, reuse of gaps, and no two live allocations in one place.
#include "host/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/error.h"
#include "nrt_abi.h"

namespace nxl::host::testing {
namespace {

TEST(CoreMemory, CountsRoundedBytesAndRefusesBeyondTheLimit) {
  auto memory = std::make_shared<CoreMemory>(0, 4096);
  auto first = memory->allocate(1000);
  EXPECT_EQ(1024u, memory->used());
  EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(first->address()) % CoreMemory::kAlignment);
  auto reserved = memory->reserve(3000);
  EXPECT_EQ(4024u, memory->used());
  try {
    memory->allocate(100);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(NRT_RESOURCE, error.nrt_status());
    EXPECT_EQ(ErrorKind::kOutOfMemory, error.kind());
    for (const char* part : {"4024", "256", "4096"}) EXPECT_NE(std::string::npos, std::string(error.what()).find(part));
  }
  EXPECT_EQ(4024u, memory->used());
  EXPECT_THROW(memory->allocate(UINT64_MAX), Error);
  EXPECT_THROW(memory->reserve(UINT64_MAX), Error);
  reserved.reset();
  first.reset();
  EXPECT_EQ(0u, memory->used());
}

TEST(CoreMemory, LargeAllocationsHaveTheirOwnFile) {
  auto memory = std::make_shared<CoreMemory>(0, uint64_t{1} << 40);
  auto large = memory->allocate(CoreMemory::kOwnSegmentBytes + 1);
  EXPECT_EQ(CoreMemory::kOwnSegmentBytes + 4096, memory->used());
  std::memset(large->address(), 1, CoreMemory::kOwnSegmentBytes + 1);
  EXPECT_EQ(-1, memory->export_range(reinterpret_cast<uint64_t>(large->address()) - 1, 1));
}

TEST(CoreMemory, OutlivesItsOwnerThroughAllocations) {
  auto memory = std::make_shared<CoreMemory>(0, 1 << 20);
  auto allocation = memory->allocate(64);
  memory.reset();
  std::memset(allocation->address(), 1, 64);
}

TEST(CoreMemory, RandomUseNeverOverlapsAndEndsEmpty) {
  auto memory = std::make_shared<CoreMemory>(0, uint64_t{1} << 40);
  std::mt19937 random(3);
  struct Live {
    std::shared_ptr<Allocation> allocation;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Live> live;
  uint64_t expected = 0;
  const auto drop = [&](size_t at) {
    const Live& gone = live[at];
    for (size_t i = 0; i < gone.bytes; i += 61) {
      ASSERT_EQ(gone.mark, static_cast<unsigned char>(gone.allocation->address()[i]));
    }
    expected -= gone.allocation->bytes();
    live[at] = std::move(live.back());
    live.pop_back();
  };
  for (int round = 0; round < 3000; ++round) {
    if (live.size() > 60 || (!live.empty() && random() % 2)) {
      drop(random() % live.size());
    } else {
      const size_t bytes = 1 + random() % (random() % 50 == 0 ? 20u << 20 : 40000);
      const auto mark = static_cast<unsigned char>(random());
      live.push_back({memory->allocate(bytes), bytes, mark});
      for (size_t i = 0; i < bytes; i += 61) live.back().allocation->address()[i] = std::byte{mark};
      expected += live.back().allocation->bytes();
    }
    ASSERT_EQ(expected, memory->used());
  }
  while (!live.empty()) drop(live.size() - 1);
  EXPECT_EQ(0u, memory->used());
}

TEST(CoreMemory, DefaultLimitIsAShareOfThePhysicalMemory) {
  unsetenv("NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB");
  EXPECT_EQ(physical_memory() / 5 * 4 / 2, memory_limit_per_core(2));
  EXPECT_GT(memory_limit_per_core(1), memory_limit_per_core(4));
  setenv("NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB", "12", 1);
  EXPECT_EQ(uint64_t{12} << 20, memory_limit_per_core(4));
  unsetenv("NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB");
}

}  // namespace
}  // namespace nxl::host::testing
