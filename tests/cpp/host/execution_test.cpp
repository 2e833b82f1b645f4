// SPDX-License-Identifier: Apache-2.0
// Execution: synchronous and queued, order, depth, completion, errors, bindings.
#include "device.h"

namespace nxl::host::testing {
namespace {

constexpr int64_t kBig = 1 << 20;  // f32 elements: too large to run inline

TEST(Execute, CopiesAndAddsSynchronously) {
  NXL_FRESH_PROCESS();
  open_runtime();
  LoadedModel copy(copy_neff(4));
  LoadedModel add(add_neff(4));
  DeviceTensor x(std::vector<float>{1, 2, 3, 4}), y(16), z(16);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(copy.get(), in.get(), out.get()));
  EXPECT_EQ((std::vector<float>{1, 2, 3, 4}), y.read());
  NamedSet sum_in("input", {x.get(), y.get()}), sum_out("output", {z.get()});
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(add.get(), sum_in.get(), sum_out.get()));
  EXPECT_EQ((std::vector<float>{2, 4, 6, 8}), z.read());
}

TEST(Execute, QueuedWorkRunsInOrderAndCompletes) {
  NXL_FRESH_PROCESS();
  open_runtime();
  LoadedModel add(accumulate_neff(kBig));
  DeviceTensor sum(std::vector<float>(kBig, 0.0f)), one(std::vector<float>(kBig, 1.0f));
  NamedSet in("input", {sum.get(), one.get()}), out("output", {sum.get()});
  nrta_seq_t seq = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(NRT_SUCCESS, nrta_execute_schedule(add.get(), in.get(), out.get(), 0, nullptr, &seq));
    EXPECT_EQ(static_cast<uint64_t>(NRTA_XU_COMPUTE), seq >> 48);
    EXPECT_EQ(static_cast<uint64_t>(i + 1), seq & 0xffffffffff);
  }
  ASSERT_TRUE(poll_complete(seq));
  EXPECT_TRUE(is_complete(seq));
  EXPECT_EQ(std::vector<float>(kBig, 4.0f), sum.read());
}

}  // namespace
}  // namespace nxl::host::testing
