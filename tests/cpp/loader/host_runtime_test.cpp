// SPDX-License-Identifier: Apache-2.0
// The loader on the real libnrt_host.so: values, order, back-pressure, faults, memory and lifetimes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "host/program_builder.h"
#include "loader/core_queue.h"
#include "loader/executable.h"
#include "nrt/tensor.h"

namespace nxl::test {
namespace {

using host::testing::accumulate_neff;
using host::testing::add_neff;
using loader::CoreQueue;
using loader::Executable;
using nrt::Runtime;
using nrt::Tensor;

constexpr size_t kElements = 1000;

void use_host() {
  setenv("NEURON_LIBTORCH_RUNTIME", "host", 1);
  setenv("NEURON_LIBTORCH_NRT_LIBRARY", NRT_HOST_LIBRARY, 1);
}

Tensor filled(float value, int core = 0) {
  Tensor tensor = Tensor::allocate_device(Runtime::get(), core, kElements * sizeof(float));
  auto* data = static_cast<float*>(tensor.address());
  std::fill(data, data + kElements, value);
  return tensor;
}

float first(const Tensor& tensor) { return *static_cast<const float*>(tensor.address()); }

Status run(Executable& executable, const Tensor& a, const Tensor& b, const Tensor& out) {
  uint64_t ticket = 0;
  const std::array<nrt_tensor_t*, 2> inputs = {a.get(), b.get()};
  const std::array<nrt_tensor_t*, 1> outputs = {out.get()};
  return executable.run(inputs, outputs, &ticket);
}

class HostLoader : public testing::Test {
 protected:
  void SetUp() override { use_host(); }
  void TearDown() override {
    EXPECT_TRUE(CoreQueue::of(0).drain().is_ok());
    EXPECT_TRUE(CoreQueue::of(0).take_error().is_ok());
  }
};

TEST_F(HostLoader, AddsOnEveryCore) {
  const std::vector<std::byte> neff = add_neff(kElements);
  for (int core = 0; core < Runtime::get()->core_count(); ++core) {
    const auto executable = Executable::load(neff, core);
    const Tensor a = filled(1, core), b = filled(2, core), out = filled(0, core);
    ASSERT_TRUE(run(*executable, a, b, out).is_ok());
    ASSERT_TRUE(CoreQueue::of(core).drain().is_ok());
    EXPECT_EQ(first(out), 3);
  }
}

// More than the queue holds, with no wait in between: outputs feed the next call, and nothing fails.
TEST_F(HostLoader, ManyRunsChainInOrder) {
  const auto executable = Executable::load(accumulate_neff(kElements), 0);
  EXPECT_EQ(executable->outputs()[0].alias_input, 0);
  const Tensor sum = filled(0), one = filled(1);
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(run(*executable, sum, one, sum).is_ok()) << i;
  ASSERT_TRUE(CoreQueue::of(0).drain().is_ok());
  EXPECT_EQ(first(sum), 500);
}

TEST_F(HostLoader, CopiesAreOrderedWithExecutions) {
  const auto executable = Executable::load(add_neff(kElements), 0);
  const Tensor a = filled(0), b = filled(1), out = filled(0);
  CoreQueue& queue = CoreQueue::of(0);
  std::vector<std::vector<float>> sources(50), results(50);
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i].assign(kElements, static_cast<float>(i));
    results[i].resize(kElements);
    queue.write(a.get(), sources[i].data(), 0, kElements * sizeof(float), nullptr);
    ASSERT_TRUE(run(*executable, a, b, out).is_ok());
    queue.read(results[i].data(), out.get(), 0, kElements * sizeof(float), nullptr);
  }
  ASSERT_TRUE(queue.drain().is_ok());
  for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i][kElements - 1], static_cast<float>(i + 1));
}

TEST_F(HostLoader, TensorsComeAndGoBetweenRuns) {
  const auto executable = Executable::load(add_neff(kElements), 0);
  const Tensor one = filled(1);
  for (int i = 0; i < 50; ++i) {
    const Tensor a = filled(static_cast<float>(i)), out = filled(0);
    ASSERT_TRUE(run(*executable, a, one, out).is_ok()) << i;
    if (i % 2 == 0) continue;  // freed in flight: the free waits
    ASSERT_TRUE(CoreQueue::of(0).drain().is_ok());
    EXPECT_EQ(first(out), static_cast<float>(i + 1));
  }
}

TEST_F(HostLoader, RefusesSizesChipFilesAndBadPrograms) {
  const auto executable = Executable::load(add_neff(kElements), 0);
  const Tensor a = filled(0), b = filled(1);
  const Tensor small = Tensor::allocate_device(Runtime::get(), 0, 4);
  EXPECT_EQ(run(*executable, a, b, small).code, NRT_INVALID);
  host::testing::ProgramBuilder broken;
  broken.set_program("{");
  EXPECT_THROW(Executable::load(broken.neff(), 0), Error);
  host::testing::ProgramBuilder chip;
  chip.set_target("trn2");
  try {
    Executable::load(chip.neff("decode"), 0);
    FAIL() << "a chip NEFF was loaded on the host runtime";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("was built for the chip (target 'trn2')"), std::string::npos);
  }
}

TEST_F(HostLoader, MemoryIsCountedAndGivenBack) {
  const uint64_t before = Runtime::get()->memory(0).first;
  {
    const auto executable = Executable::load(add_neff(kElements), 0);
    const Tensor a = filled(0), b = filled(1), out = filled(0);
    EXPECT_GE(Runtime::get()->memory(0).first, before + 3 * kElements * sizeof(float));
    ASSERT_TRUE(run(*executable, a, b, out).is_ok());
  }
  EXPECT_EQ(Runtime::get()->memory(0).first, before);
  try {
    Tensor::allocate_device(Runtime::get(), 0, uint64_t{1} << 60);
    FAIL() << "an exbibyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
  }
}

void run_with_faults() {
  use_host();
  setenv("NEURON_LIBTORCH_HOST_FAULTS", "execute:EXEC_OOB@2,delay_ms:execute=10", 1);
  const auto executable = Executable::load(add_neff(kElements), 0);
  const Tensor a = filled(1), b = filled(2), out = filled(0);
  for (int i = 0; i < 20; ++i) {
    if (!run(*executable, a, b, out).is_ok()) std::_Exit(1);
  }
  if (!CoreQueue::of(0).drain().is_ok()) std::_Exit(2);
  const Status error = CoreQueue::of(0).take_error();
  fprintf(stderr, "%d %s\n", error.code, error.message.c_str());
  std::_Exit(CoreQueue::of(0).take_error().is_ok() && first(out) == 3 ? 0 : 3);
}

TEST(HostLoaderDeathTest, AFaultIsTakenOnceAndSlowWorkOnlyBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_with_faults(), testing::ExitedWithCode(0),
              "1006 neuron:0: the execution of 'add' failed with NRT_EXEC_OOB \\(1006\\)");
}

void close_under_live_objects() {
  use_host();
  {
    const auto executable = Executable::load(add_neff(kElements), 0);
    const Tensor a = filled(1), b = filled(2), out = filled(0);
    if (!run(*executable, a, b, out).is_ok()) std::_Exit(1);
    Runtime::close();
    if (run(*executable, a, b, out).code != NRT_CLOSED || !CoreQueue::of(0).take_error().is_ok()) std::_Exit(2);
  }
  std::_Exit(0);
}

TEST(HostLoaderDeathTest, CloseUnderLiveObjectsIsHarmless) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(close_under_live_objects(), testing::ExitedWithCode(0), "");
}

void fork_with_live_objects() {
  use_host();
  auto executable = Executable::load(add_neff(kElements), 0);
  Tensor a = filled(1);
  const Tensor b = filled(2), out = filled(0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool refused = run(*executable, a, b, out).code == NRT_CLOSED;
    executable.reset();
    a = Tensor();
    std::_Exit(refused ? 0 : 1);
  }
  int result = 0;
  waitpid(child, &result, 0);
  const bool parent_works = run(*executable, a, b, out).is_ok() && CoreQueue::of(0).drain().is_ok() && first(out) == 3;
  std::_Exit(result == 0 && parent_works ? 0 : 1);
}

TEST(HostLoaderDeathTest, AForkedChildIsHarmlessToItsParent) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fork_with_live_objects(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace nxl::test
