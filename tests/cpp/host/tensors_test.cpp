// SPDX-License-Identifier: Apache-2.0
// Tensors: reading, writing, slices, attached buffers, copies, exported memory, handles that are not live.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "device.h"

namespace nxl::host::testing {
namespace {

class Tensors : public ::testing::Test {
 protected:
  // One runtime for the suite: these tests leave nothing behind.
  static void SetUpTestSuite() {
    const NRT_STATUS status = nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", "");
    ASSERT_TRUE(status == NRT_SUCCESS || status == NRT_INVALID);
  }
};

TEST_F(Tensors, ReadsAndWritesInsideItsSizeOnly) {
  DeviceTensor x(std::vector<float>{1, 2, 3, 4});
  float two[2] = {};
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_read(x.get(), two, 8, 8));
  EXPECT_EQ(3.0f, two[0]);
  EXPECT_EQ(4.0f, two[1]);
  EXPECT_EQ(NRT_INVALID, nrt_tensor_read(x.get(), two, 12, 8));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_read(x.get(), two, SIZE_MAX, 8));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_write(x.get(), two, 16, 1));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_write(x.get(), nullptr, 0, 4));
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_write(x.get(), nullptr, 16, 0));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_memset(x.get(), 9, 0, 8));
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_memset(x.get(), 4, 0, 8));
  EXPECT_EQ((std::vector<float>{1, 0, 0, 4}), x.read());
}

TEST_F(Tensors, AddressIsReal) {
  DeviceTensor x(std::vector<float>{5});
  auto* va = static_cast<float*>(nrt_tensor_get_va(x.get()));
  ASSERT_NE(nullptr, va);
  EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(va) % 64);
  *va = 6;
  EXPECT_EQ((std::vector<float>{6}), x.read());
  nrt_tensor_device_allocation_info_t info{};
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_get_device_allocation_info(x.get(), &info));
  EXPECT_EQ(reinterpret_cast<uint64_t>(va), info.physical_address);
  EXPECT_EQ(4u, info.size);
  EXPECT_EQ(0, info.hbm_index);
}

TEST_F(Tensors, SlicesShareStorageAndKeepIt) {
  auto x = std::make_unique<DeviceTensor>(std::vector<float>{1, 2, 3, 4});
  nrt_tensor_t* slice = nullptr;
  EXPECT_EQ(NRT_INVALID, nrt_tensor_allocate_slice(x->get(), 8, 12, "slice", &slice));
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_allocate_slice(x->get(), 4, 8, "slice", &slice));
  EXPECT_EQ(8u, nrt_tensor_get_size(slice));
  const float nine = 9;
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_write(slice, &nine, 4, 4));
  EXPECT_EQ((std::vector<float>{1, 2, 9, 4}), x->read());
  const uint64_t used = memory_used();
  x.reset();
  EXPECT_EQ(used, memory_used());
  float value = 0;
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_read(slice, &value, 4, 4));
  EXPECT_EQ(9.0f, value);
  nrt_tensor_free(&slice);
  EXPECT_EQ(0u, memory_used());
}

TEST_F(Tensors, EmptyTensorsTakeTheCallersBuffer) {
  nrt_tensor_t* tensor = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_allocate_empty("late", &tensor));
  float buffer[2] = {1, 2};
  float value = 0;
  EXPECT_EQ(NRT_INVALID, nrt_tensor_read(tensor, &value, 0, 4));
  EXPECT_EQ(nullptr, nrt_tensor_get_va(tensor));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_attach_buffer(tensor, nullptr, 8));
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_attach_buffer(tensor, buffer, sizeof(buffer)));
  EXPECT_EQ(buffer, nrt_tensor_get_va(tensor));
  EXPECT_EQ(8u, nrt_tensor_get_size(tensor));
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_read(tensor, &value, 4, 4));
  EXPECT_EQ(2.0f, value);
  nrt_tensor_device_allocation_info_t info{};
  EXPECT_EQ(NRT_INVALID, nrt_tensor_get_device_allocation_info(tensor, &info));
  nrt_tensor_free(&tensor);
}

TEST_F(Tensors, HostTensorsTakeNoDeviceMemory) {
  DeviceTensor host(64, -1, NRT_TENSOR_PLACEMENT_HOST);
  EXPECT_EQ(0u, memory_used(0));
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_memset(host.get(), 0, 1, 64));
  nrt_tensor_t* bad = nullptr;
  EXPECT_EQ(NRT_INVALID, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_VIRTUAL, 0, 64, "v", &bad));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 7, 64, "v", &bad));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, -1, 64, "v", &bad));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64, "v", nullptr));
  EXPECT_EQ(NRT_RESOURCE, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, SIZE_MAX, "v", &bad));
  EXPECT_EQ(NRT_RESOURCE, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_HOST, -1, SIZE_MAX / 2, "v", &bad));
}

TEST_F(Tensors, CopiesOnOneCoreOnly) {
  DeviceTensor a(std::vector<float>{1, 2, 3, 4}), b(16), other(16, 1);
  DeviceTensor host(16, -1, NRT_TENSOR_PLACEMENT_HOST);
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_copy(a.get(), 4, b.get(), 0, 8));
  EXPECT_EQ(2.0f, b.read()[0]);
  EXPECT_EQ(NRT_INVALID, nrt_tensor_copy(a.get(), 0, other.get(), 0, 16));
  EXPECT_EQ(NRT_INVALID, nrt_tensor_copy(a.get(), 4, b.get(), 0, 16));
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_copy(a.get(), 0, host.get(), 0, 16));
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_copy(host.get(), 0, other.get(), 0, 16));
  EXPECT_EQ((std::vector<float>{1, 2, 3, 4}), other.read());
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_copy(a.get(), 0, a.get(), 4, 12));  // overlapping, as memmove
  EXPECT_EQ((std::vector<float>{1, 1, 2, 3}), a.read());
  nrta_seq_t seq = 0;
  EXPECT_EQ(NRT_INVALID, nrta_tensor_copy(a.get(), 0, other.get(), 0, 16, 0, nullptr, &seq));
}

TEST_F(Tensors, BatchesMoveAllOrNothing) {
  DeviceTensor a(std::vector<float>{1, 2}), b(std::vector<float>{3, 4});
  float out[3] = {};
  const nrt_tensor_batch_op_t first[] = {{0, 4, &out[0]}, {4, 4, &out[1]}};
  nrt_tensor_batch_op_t second[] = {{4, 4, &out[2]}};
  const nrt_tensor_batch_t batches[] = {{a.get(), first, 2}, {b.get(), second, 1}};
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_read_batch(batches, 2, false));
  EXPECT_EQ(1.0f, out[0]);
  EXPECT_EQ(2.0f, out[1]);
  EXPECT_EQ(4.0f, out[2]);
  out[0] = out[1] = out[2] = 9;
  second[0].offset = 6;
  EXPECT_EQ(NRT_INVALID, nrt_tensor_write_batch(batches, 2, false));
  EXPECT_EQ((std::vector<float>{1, 2}), a.read());
  second[0].offset = 0;
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_write_batch(batches, 2, true));
  EXPECT_EQ((std::vector<float>{9, 9}), a.read());
  EXPECT_EQ((std::vector<float>{9, 4}), b.read());
  EXPECT_EQ(NRT_INVALID, nrt_tensor_read_batch(nullptr, 1, false));
}

TEST_F(Tensors, HandlesThatAreNotLiveAreRefused) {
  nrt_tensor_t* tensor = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 16, "x", &tensor));
  nrt_tensor_t* stale = tensor;
  nrt_tensor_free(&tensor);
  EXPECT_EQ(nullptr, tensor);
  DeviceTensor reuses_the_slot(16);
  NamedSet set("input", {});
  float value = 0;
  for (nrt_tensor_t* bad : {stale, static_cast<nrt_tensor_t*>(nullptr), static_cast<nrt_tensor_t*>(&value),
                            static_cast<nrt_tensor_t*>(set.get()), reinterpret_cast<nrt_tensor_t*>(0xdeadbeef51)}) {
    EXPECT_EQ(NRT_INVALID_HANDLE, nrt_tensor_read(bad, &value, 0, 4));
    EXPECT_EQ(NRT_INVALID_HANDLE, nrt_add_tensor_to_tensor_set(set.get(), "input0", bad));
    EXPECT_EQ(0u, nrt_tensor_get_size(bad));
    EXPECT_EQ(nullptr, nrt_tensor_get_va(bad));
    nrt_tensor_t* copy = bad;
    nrt_tensor_free(&copy);
  }
  nrt_tensor_free(nullptr);
  EXPECT_EQ(16u, nrt_tensor_get_size(reuses_the_slot.get()));
  nrt_tensor_t* found = nullptr;
  EXPECT_EQ(NRT_INVALID_HANDLE, nrt_get_tensor_from_tensor_set(reuses_the_slot.get(), "input0", &found));
}

TEST_F(Tensors, SetsGiveBackWhatWasAdded) {
  DeviceTensor a(16), b(16);
  NamedSet set("x", {a.get()});
  nrt_tensor_t* found = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_get_tensor_from_tensor_set(set.get(), "x0", &found));
  EXPECT_EQ(a.get(), found);
  set.add("x0", b.get());
  ASSERT_EQ(NRT_SUCCESS, nrt_get_tensor_from_tensor_set(set.get(), "x0", &found));
  EXPECT_EQ(b.get(), found);
  EXPECT_EQ(NRT_INVALID, nrt_get_tensor_from_tensor_set(set.get(), "y", &found));
  EXPECT_EQ(NRT_INVALID, nrt_add_tensor_to_tensor_set(set.get(), nullptr, a.get()));
}

TEST_F(Tensors, ExportedDescriptorShowsTheSameMemory) {
  constexpr size_t kSize = 16 << 20;  // large enough for a file of its own
  DeviceTensor large(kSize);
  auto* va = static_cast<char*>(nrt_tensor_get_va(large.get()));
  std::memset(va, 7, kSize);
  int fd = -1;
  ASSERT_EQ(NRT_SUCCESS, nrt_get_dmabuf_fd(reinterpret_cast<uint64_t>(va), kSize, &fd));
  EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  EXPECT_EQ(0, lseek(fd, 0, SEEK_CUR));
  struct stat info {};
  ASSERT_EQ(0, fstat(fd, &info));
  EXPECT_EQ(static_cast<off_t>(kSize), info.st_size);  // nothing but this tensor is in it
  EXPECT_NE(0, ftruncate(fd, 0));                      // an importer cannot cut it under us
  auto* mapped = static_cast<char*>(mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd, 0));
  ASSERT_NE(MAP_FAILED, static_cast<void*>(mapped));
  va[kSize - 1] = 8;
  EXPECT_EQ(7, mapped[0]);
  EXPECT_EQ(8, mapped[kSize - 1]);
  munmap(mapped, kSize);
  close(fd);
}

TEST_F(Tensors, ExportOfASmallTensorIsPlacedByItsOffset) {
  DeviceTensor first(256), second(std::vector<float>{1, 2, 3});
  const auto va = reinterpret_cast<uint64_t>(nrt_tensor_get_va(second.get()));
  int fd = -1;
  ASSERT_EQ(NRT_SUCCESS, nrt_get_dmabuf_fd(va + 4, 8, &fd));
  float values[2] = {};
  ASSERT_EQ(8, read(fd, values, 8));
  EXPECT_EQ(2.0f, values[0]);
  EXPECT_EQ(3.0f, values[1]);
  close(fd);
  EXPECT_EQ(NRT_INVALID, nrt_get_dmabuf_fd(va, 1 << 20, &fd));
  EXPECT_EQ(NRT_INVALID, nrt_get_dmabuf_fd(va, 0, &fd));
  EXPECT_EQ(NRT_INVALID, nrt_get_dmabuf_fd(0, 16, &fd));
  EXPECT_EQ(NRT_INVALID, nrt_get_dmabuf_fd(reinterpret_cast<uint64_t>(&fd), 4, &fd));
  EXPECT_EQ(NRT_INVALID, nrt_get_dmabuf_fd(va, 4, nullptr));
}

TEST_F(Tensors, QueuedCopiesKeepTheirOrder) {
  DeviceTensor a(16), b(16);
  const std::vector<float> data{1, 2, 3, 4};
  std::vector<float> back(4);
  nrta_seq_t write = 0, copy = 0, read = 0;
  ASSERT_EQ(NRT_SUCCESS, nrta_tensor_write(a.get(), data.data(), 0, 16, 0, nullptr, &write));
  ASSERT_EQ(NRT_SUCCESS, nrta_tensor_copy(a.get(), 0, b.get(), 0, 16, 0, nullptr, &copy));
  ASSERT_EQ(NRT_SUCCESS, nrta_tensor_read(back.data(), b.get(), 0, 16, 0, nullptr, &read));
  ASSERT_TRUE(poll_complete(read));
  EXPECT_TRUE(is_complete(write));
  EXPECT_TRUE(is_complete(copy));
  EXPECT_EQ(data, back);
  EXPECT_EQ(static_cast<uint64_t>(NRTA_XU_TENSOR_WRITE), write >> 48);
  EXPECT_EQ(static_cast<uint64_t>(NRTA_XU_TENSOR_OP), copy >> 48);
  EXPECT_EQ(static_cast<uint64_t>(NRTA_XU_TENSOR_READ), read >> 48);
  EXPECT_EQ(NRT_INVALID, nrta_tensor_read(back.data(), b.get(), 8, 16, 0, nullptr, &read));
  EXPECT_EQ(NRT_INVALID, nrta_tensor_read(nullptr, b.get(), 0, 16, 0, nullptr, &read));
  EXPECT_EQ(NRT_INVALID, nrta_tensor_read(back.data(), b.get(), 0, 16, 1, nullptr, &read));
}

}  // namespace
}  // namespace nxl::host::testing
