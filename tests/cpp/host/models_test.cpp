// SPDX-License-Identifier: Apache-2.0
// Models: what nrt_load takes and refuses, what it counts as device memory, and the signature it describes.
#include <cstring>

#include "device.h"

namespace nxl::host::testing {
namespace {

class Models : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const NRT_STATUS status = nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", "");
    ASSERT_TRUE(status == NRT_SUCCESS || status == NRT_INVALID);
  }
  void SetUp() override { used_ = memory_used(); }
  void TearDown() override { EXPECT_EQ(used_, memory_used()) << "device memory leaked"; }

  static NRT_STATUS load(const std::vector<std::byte>& neff, std::string* log = nullptr, int core = 0) {
    nrt_model_t* model = nullptr;
    ::testing::internal::CaptureStderr();
    const NRT_STATUS status = nrt_load(neff.data(), neff.size(), core, -1, &model);
    const std::string text = ::testing::internal::GetCapturedStderr();
    if (log) *log = text;
    if (status == NRT_SUCCESS) {
      EXPECT_EQ(NRT_SUCCESS, nrt_unload(model));
    } else {
      EXPECT_EQ(nullptr, model);
    }
    return status;
  }

 private:
  uint64_t used_ = 0;
};

TEST_F(Models, ConstantsAndArenaAreDeviceMemory) {
  ProgramBuilder builder;
  builder.set_constants(std::string(1000, 'c'));
  builder.set_arena_bytes(4096);
  const int out = builder.output_buffer(builder.output({4}), 16);
  const int constant = builder.buffer(R"({"kind":"constant","offset":64,"bytes":16})");
  builder.step("copy", {builder.dense(constant, {4})}, {builder.dense(out, {4})});
  const auto neff = builder.neff();
  const uint64_t before = memory_used();
  {
    LoadedModel model(neff);
    EXPECT_EQ(before + 1000 + 4096, memory_used());
    DeviceTensor y(16);
    NamedSet in("input", {}), outs("output", {y.get()});
    ASSERT_EQ(NRT_SUCCESS, nrt_execute(model.get(), in.get(), outs.get()));
    float expected;
    std::memcpy(&expected, "cccc", 4);
    EXPECT_EQ(std::vector<float>(4, expected), y.read());
  }
  EXPECT_EQ(before, memory_used());
}

TEST_F(Models, DescribesItsSignature) {
  LoadedModel model(accumulate_neff(6));
  nrt_tensor_info_array_t* info = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_get_model_tensor_info(model.get(), &info));
  ASSERT_EQ(3u, info->tensor_count);
  EXPECT_STREQ("input1", info->tensor_array[1].name);
  EXPECT_EQ(NRT_TENSOR_USAGE_INPUT, info->tensor_array[1].usage);
  EXPECT_STREQ("output0", info->tensor_array[2].name);
  EXPECT_EQ(NRT_TENSOR_USAGE_OUTPUT, info->tensor_array[2].usage);
  EXPECT_EQ(24u, info->tensor_array[2].size);
  EXPECT_EQ(NRT_DTYPE_FLOAT32, info->tensor_array[2].dtype);
  ASSERT_EQ(1u, info->tensor_array[2].ndim);
  EXPECT_EQ(6u, info->tensor_array[2].shape[0]);
  EXPECT_EQ(NRT_SUCCESS, nrt_free_model_tensor_info(info));
  EXPECT_EQ(NRT_INVALID_HANDLE, nrt_free_model_tensor_info(info));
  uint32_t cores = 0;
  EXPECT_EQ(NRT_SUCCESS, nrt_get_model_vnc_count(model.get(), &cores));
  EXPECT_EQ(1u, cores);
}

TEST_F(Models, BrokenFilesAreInvalid) {
  const auto good = copy_neff(64);
  EXPECT_EQ(NRT_SUCCESS, load(good));
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1023}, size_t{1024}, size_t{1536}, good.size() - 1}) {
    EXPECT_EQ(NRT_INVALID, load({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)})) << size;
  }
  for (size_t at = 1024; at < good.size(); at += 97) {  // the digest sees every flip in the data
    auto flipped = good;
    flipped[at] ^= std::byte{1};
    EXPECT_EQ(NRT_INVALID, load(flipped)) << at;
  }
  nrt_model_t* model = nullptr;
  EXPECT_EQ(NRT_INVALID, nrt_load(nullptr, 10, 0, -1, &model));
  EXPECT_EQ(NRT_INVALID, nrt_load(good.data(), good.size(), 9, -1, &model));
  EXPECT_EQ(NRT_INVALID, nrt_load(good.data(), good.size(), 0, 2, &model));
  EXPECT_EQ(NRT_INVALID, nrt_load(good.data(), good.size(), 0, -1, nullptr));
}

TEST_F(Models, OtherTargetsAndVersionsAreNamed) {
  std::string log;
  ProgramBuilder chip;
  chip.set_target("trn2");
  chip.output({1});
  EXPECT_EQ(NRT_INVALID, load(chip.neff("model_a"), &log));
  EXPECT_NE(std::string::npos, log.find("host")) << log;
  ProgramBuilder newer;
  newer.set_version(2);
  EXPECT_EQ(NRT_UNSUPPORTED_NEFF_VERSION, load(newer.neff(), &log));
  EXPECT_NE(std::string::npos, log.find("version 2")) << log;
  ProgramBuilder unknown;
  const int out = unknown.output_buffer(unknown.output({1}), 4);
  unknown.step("teleport", {}, {unknown.dense(out, {1})});
  EXPECT_EQ(NRT_UNSUPPORTED_NEFF_VERSION, load(unknown.neff(), &log));
  EXPECT_NE(std::string::npos, log.find("teleport")) << log;
}

TEST_F(Models, TooLargeForTheCoreIsResource) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB", "1"});
  ProgramBuilder builder;
  builder.set_arena_bytes(2 << 20);
  std::string log;
  EXPECT_EQ(NRT_RESOURCE, load(builder.neff(), &log));
  for (const char* part : {"1048576", "2097152", "0 bytes used"}) EXPECT_NE(std::string::npos, log.find(part)) << log;
}

TEST_F(Models, HandlesAreChecked) {
  const auto neff = copy_neff(4);
  nrt_model_t* model = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_load(neff.data(), neff.size(), 0, -1, &model));
  EXPECT_EQ(NRT_SUCCESS, nrt_unload(model));
  EXPECT_EQ(NRT_INVALID_HANDLE, nrt_unload(model));
  NamedSet in("input", {}), out("output", {});
  EXPECT_EQ(NRT_INVALID_HANDLE, nrt_execute(model, in.get(), out.get()));
  nrt_tensor_info_array_t* info = nullptr;
  EXPECT_EQ(NRT_INVALID_HANDLE, nrt_get_model_tensor_info(model, &info));
  EXPECT_EQ(NRT_INVALID_HANDLE, nrt_unload(nullptr));
}

TEST_F(Models, CollectiveLoadChecksItsPlace) {
  const auto neff = copy_neff(4);
  nrt_model_t* model = nullptr;
  EXPECT_EQ(NRT_INVALID, nrt_load_collectives(neff.data(), neff.size(), 0, -1, 2, 2, &model));
  ASSERT_EQ(NRT_SUCCESS, nrt_load_collectives(neff.data(), neff.size(), 0, -1, 1, 2, &model));
  EXPECT_EQ(NRT_SUCCESS, nrt_unload(model));
}

}  // namespace
}  // namespace nxl::host::testing
