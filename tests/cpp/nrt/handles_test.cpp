// SPDX-License-Identifier: Apache-2.0
// Owners of NRT handles: allocation, moves, slices, limits.
#include <gtest/gtest.h>

#include <cstdlib>

#include "fake_nrt/fake_nrt.h"
#include "nrt/error_tracker.h"
#include "nrt/model.h"
#include "nrt/tensor.h"
#include "nrt/tensor_set.h"

namespace nxl::test {
namespace {

using nrt::Runtime;
using nrt::Tensor;

class HandlesTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("NEURON_LIBTORCH_RUNTIME", "host", 1);
    setenv("NEURON_LIBTORCH_NRT_LIBRARY", FAKE_NRT_LIBRARY, 1);
    fake_nrt().reset();
    runtime_ = Runtime::get();
  }
  void TearDown() override {
    EXPECT_EQ(fake_nrt().live_tensors(), 0);
    EXPECT_EQ(fake_nrt().live_sets(), 0);
    EXPECT_EQ(fake_nrt().live_models(), 0);
    EXPECT_TRUE(fake_nrt().violations().empty());
  }
  std::shared_ptr<Runtime> runtime_;
};

TEST_F(HandlesTest, TensorsAreFreedOnceAndMoveEmpty) {
  Tensor first = Tensor::allocate_device(runtime_, 0, 100);
  EXPECT_TRUE(first);
  EXPECT_EQ(first.size(), 100u);
  EXPECT_NE(first.address(), nullptr);
  EXPECT_EQ(runtime_->memory(0).first, 100u);
  Tensor second = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(first.size(), 0u);
  EXPECT_EQ(first.address(), nullptr);
  Tensor third = Tensor::allocate_host(runtime_, 10);
  EXPECT_EQ(fake_nrt().live_tensors(), 2);
  third = std::move(second);
  EXPECT_EQ(fake_nrt().live_tensors(), 1);
  EXPECT_EQ(third.size(), 100u);
  third = Tensor();
  EXPECT_EQ(runtime_->memory(0).first, 0u);
}

TEST_F(HandlesTest, SlicesShareStorageAndAreChecked) {
  const Tensor whole = Tensor::allocate_device(runtime_, 0, 100);
  const Tensor part = whole.slice(40, 60);
  EXPECT_EQ(part.address(), static_cast<char*>(whole.address()) + 40);
  EXPECT_EQ(part.size(), 60u);
  EXPECT_EQ(runtime_->memory(0).first, 100u);
  EXPECT_THROW(whole.slice(41, 60), Error);
  EXPECT_THROW(whole.slice(101, 0), Error);
  EXPECT_THROW(whole.slice(1, SIZE_MAX), Error);
  EXPECT_THROW(Tensor().slice(0, 0), Error);
}

TEST_F(HandlesTest, AFullCoreTellsUsedAskedAndLimit) {
  const Tensor most = Tensor::allocate_device(runtime_, 0, 1000000);
  try {
    Tensor::allocate_device(runtime_, 0, 100000);
    FAIL() << "over the limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_EQ(error.nrt_status(), NRT_RESOURCE);
    EXPECT_EQ(std::string(error.what()),
              "neuron:0 is out of memory: asked for 100000 bytes, 1000000 bytes of 1048576 are in use (NRT_RESOURCE)");
  }
  EXPECT_THROW(Tensor::allocate_device(runtime_, 0, 0), Error);
  EXPECT_THROW(Tensor::allocate_device(runtime_, 2, 1), Error);
}

TEST_F(HandlesTest, SetsNameTensors) {
  const Tensor tensor = Tensor::allocate_device(runtime_, 0, 4);
  nrt::TensorSet set = nrt::TensorSet::allocate(runtime_);
  EXPECT_EQ(set.add("input0", tensor.get()), NRT_SUCCESS);
  EXPECT_EQ(set.add("input0", nullptr), NRT_INVALID_HANDLE);
  nrt::TensorSet moved = std::move(set);
  EXPECT_FALSE(set);
  EXPECT_EQ(fake_nrt().live_sets(), 1);
  moved = nrt::TensorSet();
  EXPECT_EQ(fake_nrt().live_sets(), 0);
}

TEST_F(HandlesTest, ModelsListTheirTensors) {
  const auto neff = make_neff("add", {{{"input0", 4}}, {{"output0", 8}}, {}});
  nrt::Model model = nrt::Model::load(runtime_, neff, 0, "add", {});
  const std::vector<nrt::ModelTensor> tensors = model.tensors();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "output0");
  EXPECT_TRUE(tensors[0].is_output);
  EXPECT_EQ(tensors[0].bytes, 8u);
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{4}));
  nrt::Model moved = std::move(model);
  EXPECT_FALSE(model);
  moved.unload();
  moved.unload();
  EXPECT_EQ(fake_nrt().live_models(), 0);
}

TEST_F(HandlesTest, TrackersListErrors) {
  nrt::ErrorTracker tracker = nrt::ErrorTracker::create(runtime_, 0);
  EXPECT_TRUE(tracker.list().empty());
  nrt::ErrorTracker moved = std::move(tracker);
  EXPECT_EQ(tracker.get(), nullptr);
  EXPECT_TRUE(tracker.list().empty());
  EXPECT_NE(moved.get(), nullptr);
}

}  // namespace
}  // namespace nxl::test
