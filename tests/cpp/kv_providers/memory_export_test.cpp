// SPDX-License-Identifier: Apache-2.0
// What leaves the process: exactly the registered memory, read-only for good, or nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "kv/provider.h"
#include "kv/providers/shm_provider.h"
#include "nrt/tensor.h"
#include "peer.h"

namespace nxl::kv {
namespace {

RegionDescription describe(std::span<std::byte> bytes, int fd, uint64_t offset = 0) {
  RegionDescription description;
  description.address = bytes.data();
  description.bytes = bytes.size();
  description.fd = fd;
  description.fd_offset = offset;
  return description;
}

TEST(MemoryExport, IsReadableAndNeverWritable) {
  const Pool pool(8192, false);
  uint64_t offset = 1;
  const UniqueFd exported = export_memory(describe(pool.bytes(), pool.fd()), &offset);
  ASSERT_TRUE(exported);
  EXPECT_EQ(offset, 0u);
  pool.bytes()[100] = std::byte{42};  // the owner still writes
  RemoteRegion region;
  region.bytes = 8192;
  region.fd = std::make_shared<UniqueFd>(dup(exported.get()));
  std::string why;
  const auto mapping = SharedMapping::map(region, &why);
  ASSERT_TRUE(mapping) << why;
  EXPECT_EQ(mapping->bytes()[100], std::byte{42});

  EXPECT_EQ(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, exported.get(), 0), MAP_FAILED);
  EXPECT_LT(write(exported.get(), "x", 1), 0);
  const UniqueFd again(open(("/proc/self/fd/" + std::to_string(exported.get())).c_str(), O_RDWR | O_CLOEXEC));
  if (again) {  // the file's mode allows it; the seal does not
    EXPECT_EQ(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
    EXPECT_LT(write(again.get(), "x", 1), 0);
    EXPECT_NE(ftruncate(again.get(), 0), 0);
  }
}

TEST(MemoryExport, NothingThatHoldsMoreOrIsElsewhere) {
  const Pool pool(4 * 4096), other(4 * 4096);
  uint64_t offset = 0;
  EXPECT_FALSE(export_memory(describe(pool.bytes().first(4096), pool.fd()), &offset));          // more behind it
  EXPECT_FALSE(export_memory(describe(pool.bytes().subspan(4096), pool.fd(), 4096), &offset));  // more before it
  EXPECT_FALSE(export_memory(describe(pool.bytes(), other.fd()), &offset));                     // another file
  EXPECT_FALSE(export_memory(describe(pool.bytes(), pool.fd(), 64), &offset));                  // past its end
  EXPECT_FALSE(export_memory(describe(pool.bytes(), pool.fd(), UINT64_MAX - 5), &offset));
  EXPECT_FALSE(export_memory(describe(pool.bytes(), -1), &offset));  // host memory, no file
  const UniqueFd pipe_like(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(export_memory(describe(pool.bytes(), pipe_like.get()), &offset));
  EXPECT_TRUE(export_memory(describe(pool.bytes(), pool.fd()), &offset));
}

TEST(MemoryExport, DeviceMemoryWithAFileOfItsOwn) {
  const auto runtime = nrt::Runtime::get();
  const auto large = nrt::Tensor::allocate_device(runtime, 0, 32 << 20);
  const auto small = nrt::Tensor::allocate_device(runtime, 0, 1 << 20);
  RegionDescription description;
  description.core = 0;
  description.address = large.address();
  description.bytes = 32 << 20;
  uint64_t offset = 1;
  const UniqueFd exported = export_memory(description, &offset);
  ASSERT_TRUE(exported);
  EXPECT_EQ(offset, 0u);
  static_cast<std::byte*>(large.address())[12345] = std::byte{9};
  std::byte seen{};
  EXPECT_EQ(pread(exported.get(), &seen, 1, 12345), 1);
  EXPECT_EQ(seen, std::byte{9});
  description.bytes = 16 << 20;
  EXPECT_FALSE(export_memory(description, &offset));  // only half of what the file holds
  description.address = small.address();
  description.bytes = 1 << 20;
  EXPECT_FALSE(export_memory(description, &offset));  // shares its file with other tensors
}

}  // namespace
}  // namespace nxl::kv
