// SPDX-License-Identifier: Apache-2.0
// The program around the kernels: binding, rebinding, refusal of what does not fit, failures that name their step.
#include <nrt_abi.h>
#include <omp.h>

#include <algorithm>

#include "program_builder.h"

namespace nxl::host::testing {
namespace {

TEST(PreparedProgram, RunsStepsInOrderThroughTheArena) {
  const at::Tensor x = sample({3, 5}, at::kFloat), y = at::empty({3, 5});
  ProgramBuilder builder;
  const uint32_t in = builder.input(x), out = builder.output(y), temporary = builder.temporary({3, 5}, at::kFloat);
  builder.step("exponential", {in}, {temporary}).step("negate", {temporary}, {out});
  ASSERT_TRUE(builder.run().is_ok());
  expect_close(y, x.exp().neg(), 1e-6);
}

TEST(PreparedProgram, EveryRunUsesTheAddressesOfThatRun) {
  const at::Tensor x = sample({8}, at::kFloat), y = at::empty({8});
  ProgramBuilder builder;
  const uint32_t in = builder.input(x), out = builder.output(y);
  auto program = builder.step("add", {in, in}, {out}).prepare();
  for (int round = 0; round < 3; ++round) {
    const at::Tensor a = sample({8}, at::kFloat), b = at::empty({8});
    void* inputs[] = {a.data_ptr()};
    void* outputs[] = {b.data_ptr()};
    ASSERT_TRUE(program->run(inputs, outputs, 1).is_ok());
    expect_close(b, a + a);
  }
}

TEST(PreparedProgram, AnAliasedOutputIsItsInput) {
  at::Tensor cache = sample({6, 4}, at::kBFloat16);
  const at::Tensor row = sample({1, 4}, at::kBFloat16);
  at::Tensor expected = cache.clone();
  expected.slice(0, 2, 3).copy_(row);
  ProgramBuilder builder;
  builder.input(cache);
  const uint32_t target = builder.output(cache), update = builder.input(row);
  const uint32_t start = builder.constant(at::scalar_tensor(2, at::kInt)),
                 zero = builder.constant(at::scalar_tensor(0, at::kInt));
  builder.step("dynamic_update_slice", {update, start, zero}, {target});
  ASSERT_TRUE(builder.run().is_ok());
  expect_close(cache, expected);
}

TEST(PreparedProgram, LeavesTheCallersThreadCountAlone) {
  const at::Tensor x = sample({100000}, at::kFloat), y = at::empty({100000});
  const int before = omp_get_max_threads();
  run_step("tanh", {x}, {y}, "{}", before + 1);
  EXPECT_EQ(omp_get_max_threads(), before);
}

// Two windows of one buffer that overlap in part: the compiler never makes them, and ATen refuses them when they run.
TEST(PreparedProgram, AFailureNamesStepAndOp) {
  const at::Tensor memory = sample({9}, at::kFloat);
  ProgramBuilder builder;
  const uint32_t x = builder.input(memory.slice(0, 0, 8)), y = builder.input(memory.slice(0, 1, 9));
  builder.program().values[y].buffer = builder.program().values[x].buffer;
  builder.step("copy", {x}, {x}).step("exponential", {x}, {y});
  const Status status = builder.run();
  EXPECT_EQ(status.code, NRT_EXEC_COMPLETED_WITH_ERR);
  EXPECT_NE(status.message.find("step 1 (exponential) failed"), std::string::npos) << status.message;
}

TEST(PreparedProgram, RefusesAWrongNumberOfAddresses) {
  const at::Tensor x = sample({4}, at::kFloat), y = at::empty({4});
  ProgramBuilder builder;
  builder.step("copy", {builder.input(x)}, {builder.output(y)});
  auto program = builder.prepare();
  void* outputs[] = {y.data_ptr()};
  const Status status = program->run({}, outputs, 1);
  EXPECT_EQ(status.code, NRT_INVALID);
  EXPECT_NE(status.message.find("1 inputs"), std::string::npos) << status.message;
}

TEST(PreparedProgram, RefusesAnUnknownOpByName) {
  expect_refused("frobnicate", {at::empty({2})}, {at::empty({2})}, "{}", ErrorKind::kUnsupported, "no such op");
}

TEST(PreparedProgram, RefusesOutputsThatOverlapThemselves) {
  const at::Tensor spread = at::empty({1}).expand({4});
  expect_refused("copy", {at::empty({4})}, {spread}, "{}", ErrorKind::kInvalid, "overlap each other");
}

TEST(PreparedProgram, RefusesOutputsInConstants) {
  ProgramBuilder builder;
  const uint32_t x = builder.input(at::ones({4})), c = builder.constant(at::ones({4}));
  builder.step("copy", {x}, {c});
  EXPECT_THROW(builder.prepare(), Error);
}

TEST(PreparedProgram, RefusesWindowsOutsideTheirBuffer) {
  for (int which = 0; which < 5; ++which) {
    ProgramBuilder builder;
    const uint32_t x = builder.input(at::ones({4})), y = builder.output(at::ones({4}));
    builder.step("copy", {x}, {y});
    Value& value = builder.program().values[y];
    if (which == 0) value.offset = 1;
    if (which == 1) value.strides = {2};
    if (which == 2) value.offset = -1;
    if (which == 3) value.strides = {int64_t{1} << 62};
    if (which == 4) value.buffer = 99;
    EXPECT_THROW(builder.prepare(), Error) << which;
  }
}

TEST(PreparedProgram, RefusesShapesWhoseCountOverflows) {
  ProgramBuilder builder;
  const uint32_t x = builder.input(at::ones({4})), y = builder.output(at::ones({4}));
  builder.step("copy", {x}, {y});
  builder.program().values[x].shape = {int64_t{1} << 40, int64_t{1} << 40};
  builder.program().values[x].strides = {0, 0};
  EXPECT_THROW(builder.prepare(), Error);
}

TEST(PreparedProgram, RefusesStepsThatNameNoValue) {
  ProgramBuilder builder;
  builder.step("copy", {7}, {builder.output(at::ones({4}))});
  EXPECT_THROW(builder.prepare(), Error);
}

TEST(PreparedProgram, RefusesAnArenaThatIsTooSmall) {
  ProgramBuilder builder;
  builder.program().arena_bytes = 64;
  std::byte small[8];
  EXPECT_THROW(PreparedProgram::prepare(builder.program(), small), Error);
}

TEST(PreparedProgram, NamesAreSortedAndUnique) {
  const std::vector<std::string> names = kernel_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_TRUE(std::binary_search(names.begin(), names.end(), "dot_general"));
}

}  // namespace
}  // namespace nxl::host::testing
