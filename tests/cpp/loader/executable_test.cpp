// SPDX-License-Identifier: Apache-2.0
// Loading, binding, the reuse of tensor sets, back-pressure and errors of executions.
#include "loader/executable.h"

#include <chrono>
#include <thread>

#include "core/error.h"
#include "loader/fake_core.h"

namespace nxl::test {
namespace {

using loader::CoreQueue;
using loader::Executable;

class ExecutableTest : public FakeCore {};

template <typename Call>
std::string error_of(Call&& call, ErrorKind kind = ErrorKind::kInvalid) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST_F(ExecutableTest, RunsAndChains) {
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0), c = filled(4, 0);
  uint64_t first = 0, second = 0;
  ASSERT_TRUE(run(*executable, a, b, &first).is_ok());
  ASSERT_TRUE(run(*executable, b, c, &second).is_ok());
  EXPECT_EQ(second, first + 1);
  ASSERT_TRUE(CoreQueue::of(0).wait(second, std::chrono::seconds(10)).is_ok());
  EXPECT_EQ(first_byte(b), 2);
  EXPECT_EQ(first_byte(c), 3);
  EXPECT_EQ(executable->core(), 0);
  EXPECT_EQ(executable->inputs()[0].name, "input0");
  EXPECT_EQ(executable->outputs()[0].bytes, 4u);
}

TEST_F(ExecutableTest, KeepsSetsAndNamesOnlyWhatChanged) {
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0), c = filled(4, 0);
  ASSERT_TRUE(run(*executable, a, b).is_ok());
  EXPECT_EQ(fake_nrt().adds(), 2);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(CoreQueue::of(0).drain().is_ok());
    ASSERT_TRUE(run(*executable, a, b).is_ok());
  }
  EXPECT_EQ(fake_nrt().adds(), 2);
  ASSERT_TRUE(CoreQueue::of(0).drain().is_ok());
  ASSERT_TRUE(run(*executable, a, c).is_ok());
  EXPECT_EQ(fake_nrt().adds(), 3);
  EXPECT_EQ(fake_nrt().live_sets(), 2);
}

TEST_F(ExecutableTest, SetsInFlightAreNotTouched) {
  fake_nrt().set_auto_complete(false);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 10), b = filled(4, 20), out_a = filled(4, 0), out_b = filled(4, 0);
  ASSERT_TRUE(run(*executable, a, out_a).is_ok());
  ASSERT_TRUE(run(*executable, b, out_b).is_ok());
  EXPECT_EQ(fake_nrt().complete(NRTA_XU_COMPUTE, 2), 2u);
  EXPECT_EQ(first_byte(out_a), 11);
  EXPECT_EQ(first_byte(out_b), 21);
}

TEST_F(ExecutableTest, FreeingATensorDropsTheSetsThatNameIt) {
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1);
  {
    const nrt::Tensor b = filled(4, 0);
    ASSERT_TRUE(run(*executable, a, b).is_ok());
    ASSERT_TRUE(CoreQueue::of(0).drain().is_ok());
  }
  EXPECT_EQ(fake_nrt().live_sets(), 0);
  const nrt::Tensor c = filled(4, 0);
  ASSERT_TRUE(run(*executable, a, c).is_ok());
  EXPECT_EQ(first_byte(c), 2);  // TearDown asks the fake for broken contracts
}

TEST_F(ExecutableTest, FreeingATensorInUseWaitsForTheExecution) {
  fake_nrt().set_auto_complete(false);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1);
  nrt::Tensor b = filled(4, 0);
  ASSERT_TRUE(run(*executable, a, b).is_ok());
  std::thread later([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fake_nrt().complete(NRTA_XU_COMPUTE, 1);
  });
  b = nrt::Tensor();
  EXPECT_EQ(fake_nrt().pending(NRTA_XU_COMPUTE), 0u);
  later.join();
}

TEST_F(ExecutableTest, RefusesWrongArgumentsByName) {
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0), large = filled(8, 0);
  uint64_t ticket = 7;
  Status status = executable->run({}, {}, &ticket);
  EXPECT_EQ(status.code, NRT_INVALID);
  EXPECT_EQ(status.message, "the executable 'add_one' has 1 inputs, 0 were given");
  EXPECT_EQ(ticket, 0u);
  status = run(*executable, large, b);
  EXPECT_EQ(status.code, NRT_INVALID);
  EXPECT_EQ(status.message, "the executable 'add_one': 'input0' needs a tensor of 4 bytes, one of 8 was given");
  status = run(*executable, a, nrt::Tensor());
  EXPECT_EQ(status.message, "the executable 'add_one': 'output0' was given no tensor");
  EXPECT_TRUE(run(*executable, a, b).is_ok());
}

TEST_F(ExecutableTest, AnAliasedOutputTakesItsInputsTensor) {
  const auto executable =
      Executable::load(make_neff("step", {{{"input0", 4}}, {{"output0", 4}}, {{"output0", "input0"}}}), 0);
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  const Status refused = run(*executable, a, b);
  EXPECT_EQ(refused.code, NRT_INVALID);
  EXPECT_NE(refused.message.find("output 'output0' is the memory of input 'input0'"), std::string::npos);
  ASSERT_TRUE(run(*executable, a, a).is_ok());
  EXPECT_EQ(first_byte(a), 2);
}

TEST_F(ExecutableTest, AFullQueueBlocksInsteadOfFailing) {
  fake_nrt().set_auto_complete(false);
  fake_nrt().set_depth(2);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  std::atomic<bool> stop{false};
  std::thread device([&] {
    while (!stop) {
      fake_nrt().complete(NRTA_XU_COMPUTE, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const uint64_t before = CoreQueue::of(0).submitted();
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(run(*executable, a, b).is_ok()) << i;
  EXPECT_EQ(CoreQueue::of(0).submitted(), before + 40);
  EXPECT_TRUE(CoreQueue::of(0).drain().is_ok());
  stop = true;
  device.join();
}

TEST_F(ExecutableTest, AFullQueueThatNeverMovesIsATimeout) {
  fake_nrt().set_auto_complete(false);
  fake_nrt().set_depth(1);
  setenv("NEURON_LIBTORCH_EXECUTION_TIMEOUT", "0.2", 1);
  const auto executable = load_add_one("stuck");
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  ASSERT_TRUE(run(*executable, a, b).is_ok());
  const Status status = run(*executable, a, b);
  unsetenv("NEURON_LIBTORCH_EXECUTION_TIMEOUT");
  EXPECT_EQ(status.code, NRT_TIMEOUT);
  EXPECT_NE(status.message.find("'stuck' did not finish within"), std::string::npos) << status.message;
  EXPECT_NE(status.message.find("NEURON_LIBTORCH_EXECUTION_TIMEOUT"), std::string::npos);
  fake_nrt().complete(NRTA_XU_COMPUTE, 1);
}

TEST_F(ExecutableTest, AQueueThatIsFullWithoutWorkOfOursIsTriedAgain) {
  fake_nrt().refuse_executions(NRT_QUEUE_FULL, 3);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  EXPECT_TRUE(run(*executable, a, b).is_ok());
  EXPECT_EQ(first_byte(b), 2);
}

TEST_F(ExecutableTest, ARefusalCarriesStatusNameAndExecutable) {
  fake_nrt().refuse_executions(NRT_HW_ERROR, 1);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  const Status status = run(*executable, a, b);
  EXPECT_EQ(status.code, NRT_HW_ERROR);
  EXPECT_EQ(status.message, "neuron:0: the execution of 'add_one' was refused with NRT_HW_ERROR (6)");
  EXPECT_TRUE(run(*executable, a, b).is_ok());
}

TEST_F(ExecutableTest, TheFirstExecutionErrorIsKeptAndTakenOnce) {
  for (const bool keeps : {false, true}) {
    fake_nrt().set_tracker_keeps(keeps);
    const auto good = load_add_one("good");
    const auto bad = load_add_one("bad");
    const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
    ASSERT_TRUE(run(*good, a, b).is_ok());
    fake_nrt().fail_work(NRT_EXEC_OOB);
    ASSERT_TRUE(run(*bad, a, b).is_ok());
    fake_nrt().fail_work(NRT_HW_ERROR);
    ASSERT_TRUE(run(*good, a, b).is_ok());
    fake_nrt().fail_work(NRT_SUCCESS);
    const Status error = CoreQueue::of(0).take_error();
    EXPECT_EQ(error.code, NRT_EXEC_OOB);
    EXPECT_EQ(error.message, "neuron:0: the execution of 'bad' failed with NRT_EXEC_OOB (1006)");
    EXPECT_TRUE(CoreQueue::of(0).take_error().is_ok());
    ASSERT_TRUE(run(*good, a, b).is_ok());
    EXPECT_TRUE(CoreQueue::of(0).take_error().is_ok()) << "an old error was reported again";
  }
}

TEST_F(ExecutableTest, CloseWaitsUnloadsAndIsIdempotent) {
  fake_nrt().set_auto_complete(false);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  ASSERT_TRUE(run(*executable, a, b).is_ok());
  std::thread later([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fake_nrt().complete(NRTA_XU_COMPUTE, 1);
  });
  executable->close();
  later.join();
  EXPECT_EQ(first_byte(b), 2);
  EXPECT_EQ(fake_nrt().live_models(), 0);
  EXPECT_EQ(fake_nrt().live_sets(), 0);
  executable->close();
  const Status status = run(*executable, a, b);
  EXPECT_EQ(status.code, NRT_CLOSED);
  EXPECT_EQ(status.message, "the executable 'add_one' was closed");
}

TEST_F(ExecutableTest, RunsFromManyThreads) {
  const auto executable = load_add_one();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const nrt::Tensor input = filled(4, static_cast<uint8_t>(t)), output = filled(4, 0);
      for (int i = 0; i < 200; ++i) {
        uint64_t ticket = 0;
        if (!run(*executable, input, output, &ticket).is_ok() ||
            !CoreQueue::of(0).wait(ticket, std::chrono::seconds(20)).is_ok() || first_byte(output) != t + 1) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ExecutableTest, RefusesAChipNeffOnTheHostRuntime) {
  const auto neff = make_neff("decode", {{{"input0", 4}}, {{"output0", 4}}, {}}, "trn2");
  const std::string message = error_of([&] { Executable::load(neff, 0); });
  EXPECT_NE(
      message.find("the NEFF 'decode' was built for the chip (target 'trn2') and this process uses the host runtime"),
      std::string::npos)
      << message;
}

TEST_F(ExecutableTest, RefusesABadCoreABrokenFileAndAFullCore) {
  const auto neff = make_neff("add", {{{"input0", 4}}, {{"output0", 4}}, {}});
  EXPECT_NE(
      error_of([&] { Executable::load(neff, 2); }).find("core 2 does not exist: this process sees 2 cores (0 to 1)"),
      std::string::npos);
  EXPECT_NE(error_of([&] { Executable::load(std::span(neff).first(2000), 0); }).find("truncated"), std::string::npos);
  const auto large = make_neff("too big", {{{"input0", 4}}, {{"output0", 4}}, {}});
  EXPECT_NE(error_of([&] { Executable::load(large, 0); }, ErrorKind::kOutOfMemory).find("'too big' does not fit"),
            std::string::npos);
  EXPECT_EQ(fake_nrt().live_models(), 0);
}

}  // namespace
}  // namespace nxl::test
