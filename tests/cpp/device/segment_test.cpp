// SPDX-License-Identifier: Apache-2.0
// What data_ptr() shows on a chip: the mapped address with NEURON_RT_MAP_HBM, else a range that faults when touched.
#include "device/segment.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "fake_nrt/fake_nrt.h"

namespace nxl::test {
namespace {

using device::Segment;

constexpr size_t kBytes = 64 << 10;

// Whether the kernel can read a byte there for us: asking does not fault.
bool is_readable(const std::byte* address) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const bool readable = ::write(ends[1], address, 1) == 1;
  EXPECT_TRUE(readable || errno == EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);
  return readable;
}

bool is_mapped(std::byte* address) { return ::msync(address, kBytes, MS_ASYNC) == 0; }

class SegmentOnAChip : public testing::Test {
 protected:
  void SetUp() override {
    setenv("NEURON_LIBTORCH_RUNTIME", "nrt", 1);
    setenv("NEURON_LIBTORCH_NRT_LIBRARY", FAKE_NRT_LIBRARY, 1);
    fake_nrt().reset();
    runtime_ = nrt::Runtime::get();
    ASSERT_FALSE(runtime_->is_host());
  }
  void TearDown() override {
    EXPECT_EQ(fake_nrt().live_tensors(), 0);
    EXPECT_TRUE(fake_nrt().violations().empty());
  }
  std::shared_ptr<nrt::Runtime> runtime_;
};

TEST_F(SegmentOnAChip, ShowsTheAddressThatNrtMaps) {
  const Segment segment(runtime_, 0, kBytes, /*small=*/true);
  EXPECT_NE(segment.base(), nullptr);
  EXPECT_EQ(segment.base(), runtime_->api().nrt_tensor_get_va(segment.handle()));
  EXPECT_TRUE(is_readable(segment.base()));
  EXPECT_FALSE(segment.host_visible());  // an address to register, not one to compute on
}

TEST_F(SegmentOnAChip, WithoutAMappingReservesARangeThatFaults) {
  fake_nrt().set_device_memory_mapped(false);
  const Segment first(runtime_, 0, kBytes, /*small=*/true);
  std::byte* gone = nullptr;
  {
    const Segment second(runtime_, 0, kBytes, /*small=*/true);
    gone = second.base();
    ASSERT_NE(first.base(), nullptr);
    ASSERT_NE(second.base(), nullptr);
    EXPECT_TRUE(first.base() + kBytes <= second.base() || second.base() + kBytes <= first.base());
    for (const size_t offset : {size_t{0}, kBytes - 1}) {
      EXPECT_FALSE(is_readable(first.base() + offset));
      EXPECT_FALSE(is_readable(second.base() + offset));
    }
    EXPECT_TRUE(is_mapped(gone));
    EXPECT_FALSE(first.host_visible());
  }
  EXPECT_FALSE(is_mapped(gone));
}

TEST_F(SegmentOnAChip, SlicesAreMadeOncePerWindow) {
  fake_nrt().set_device_memory_mapped(false);
  Segment segment(runtime_, 0, kBytes, /*small=*/true);
  EXPECT_EQ(segment.slice(0, kBytes), segment.handle());
  nrt_tensor_t* window = segment.slice(512, 100);
  EXPECT_EQ(segment.slice(512, 100), window);
  EXPECT_NE(segment.slice(512, 101), window);
  EXPECT_EQ(fake_nrt().live_tensors(), 3);
  EXPECT_THROW(segment.slice(kBytes, 1), Error);
  EXPECT_EQ(fake_nrt().live_tensors(), 3);
}

}  // namespace
}  // namespace nxl::test
