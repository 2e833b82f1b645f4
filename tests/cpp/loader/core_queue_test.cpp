// SPDX-License-Identifier: Apache-2.0
// Tickets, waiting, copies and lifetimes on the queue of a core.
#include "loader/core_queue.h"

#include <thread>

#include "core/error.h"
#include "loader/fake_core.h"

namespace nxl::test {
namespace {

using loader::CoreQueue;
using std::chrono::milliseconds;

class CoreQueueTest : public FakeCore {};

TEST_F(CoreQueueTest, BadCoresAreRefusedAndFindMakesNothing) {
  EXPECT_EQ(CoreQueue::find(1), nullptr);
  EXPECT_EQ(CoreQueue::find(-1), nullptr);
  EXPECT_EQ(CoreQueue::find(1 << 20), nullptr);
  for (const int core : {-1, 2, 1 << 20}) {
    try {
      CoreQueue::of(core);
      FAIL() << core;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_NE(std::string(error.what()).find("NEURON_RT_VISIBLE_CORES"), std::string::npos);
    }
  }
  EXPECT_EQ(&CoreQueue::of(0), &CoreQueue::of(0));
  EXPECT_EQ(CoreQueue::find(0), &CoreQueue::of(0));
}

TEST_F(CoreQueueTest, CompletionIsNoticedInOrder) {
  fake_nrt().set_auto_complete(false);
  CoreQueue& queue = CoreQueue::of(0);
  EXPECT_TRUE(queue.idle());
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  uint64_t first = 0, second = 0;
  ASSERT_TRUE(run(*executable, a, b, &first).is_ok());
  ASSERT_TRUE(run(*executable, a, b, &second).is_ok());
  EXPECT_EQ(queue.submitted(), second);
  EXPECT_FALSE(queue.idle());
  EXPECT_FALSE(queue.is_complete(first));
  fake_nrt().complete(NRTA_XU_COMPUTE, 1);
  EXPECT_TRUE(queue.is_complete(first));
  EXPECT_FALSE(queue.is_complete(second));
  EXPECT_FALSE(queue.idle());
  fake_nrt().complete(NRTA_XU_COMPUTE, 1);
  EXPECT_TRUE(queue.idle());
  EXPECT_TRUE(queue.is_complete(second));
}

TEST_F(CoreQueueTest, WaitTimesOutAndRefusesTicketsThatWereNeverGiven) {
  fake_nrt().set_auto_complete(false);
  CoreQueue& queue = CoreQueue::of(0);
  const auto executable = load_add_one("slow");
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  uint64_t ticket = 0;
  ASSERT_TRUE(run(*executable, a, b, &ticket).is_ok());
  const Status timeout = queue.wait(ticket, milliseconds(30));
  EXPECT_EQ(timeout.code, NRT_TIMEOUT);
  EXPECT_NE(timeout.message.find("'slow' did not finish within 30 ms"), std::string::npos) << timeout.message;
  EXPECT_EQ(queue.wait(ticket + 1, milliseconds(30)).code, NRT_INVALID);
  EXPECT_TRUE(queue.wait(0, milliseconds(0)).is_ok());
  fake_nrt().complete(NRTA_XU_COMPUTE, 1);
}

TEST_F(CoreQueueTest, WaitSleepsOnTheDescriptorOrWithoutOne) {
  fake_nrt().set_auto_complete(false);
  CoreQueue& queue = CoreQueue::of(0);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  for (const bool works : {true, false}) {
    fake_nrt().set_completion_fd_works(works);
    uint64_t ticket = 0;
    ASSERT_TRUE(run(*executable, a, b, &ticket).is_ok());
    std::thread device([] {
      std::this_thread::sleep_for(milliseconds(60));
      fake_nrt().complete(NRTA_XU_COMPUTE, 1);
    });
    EXPECT_TRUE(queue.wait(ticket, std::chrono::seconds(20)).is_ok());
    device.join();
    EXPECT_EQ(fake_nrt().completion_fds(), 1);  // one for the first wait, none for the second
  }
}

TEST_F(CoreQueueTest, ManyThreadsWaitForTheSameTicket) {
  fake_nrt().set_auto_complete(false);
  CoreQueue& queue = CoreQueue::of(0);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  uint64_t ticket = 0;
  ASSERT_TRUE(run(*executable, a, b, &ticket).is_ok());
  std::atomic<int> good{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] { good += queue.wait(ticket, std::chrono::seconds(20)).is_ok() ? 1 : 0; });
  }
  std::this_thread::sleep_for(milliseconds(30));
  fake_nrt().complete(NRTA_XU_COMPUTE, 1);
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(good, 4);
}

TEST_F(CoreQueueTest, ASequenceThatNrtForgotIsAnErrorNotAHang) {
  fake_nrt().set_auto_complete(false);
  CoreQueue& queue = CoreQueue::of(0);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1), b = filled(4, 0);
  ASSERT_TRUE(run(*executable, a, b).is_ok());
  fake_nrt().set_completion_query_status(NRT_INVALID_HANDLE);
  EXPECT_TRUE(queue.drain().is_ok());
  EXPECT_EQ(queue.take_error().code, NRT_INVALID_HANDLE);
  fake_nrt().complete(NRTA_XU_COMPUTE, 1);
}

TEST_F(CoreQueueTest, CopiesLandAndReleaseWhatTheyKeepAlive) {
  fake_nrt().set_auto_complete(false);
  CoreQueue& queue = CoreQueue::of(0);
  const nrt::Tensor a = filled(4, 0);
  auto source = std::make_shared<std::array<uint8_t, 2>>(std::array<uint8_t, 2>{5, 6});
  const std::weak_ptr<void> alive = source;
  const uint8_t* bytes = source->data();
  const uint64_t written = queue.write(a.get(), bytes, 1, 2, std::move(source));
  EXPECT_FALSE(queue.is_complete(written));
  EXPECT_FALSE(alive.expired());
  fake_nrt().complete(NRTA_XU_TENSOR_WRITE, 1);
  EXPECT_TRUE(queue.is_complete(written));
  EXPECT_TRUE(alive.expired());
  std::array<uint8_t, 4> target{};
  const uint64_t read = queue.read(target.data(), a.get(), 0, 4, nullptr);
  EXPECT_GT(read, written);
  fake_nrt().complete(NRTA_XU_TENSOR_READ, 1);
  ASSERT_TRUE(queue.drain().is_ok());
  EXPECT_EQ(target, (std::array<uint8_t, 4>{0, 5, 6, 0}));
}

TEST_F(CoreQueueTest, ACopyThatIsRefusedThrowsAndOneThatFailsIsTaken) {
  CoreQueue& queue = CoreQueue::of(0);
  const nrt::Tensor a = filled(4, 0);
  uint8_t bytes[8] = {};
  try {
    queue.write(a.get(), bytes, 0, 8, nullptr);
    FAIL() << "8 bytes were written to a tensor of 4";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_EQ(std::string(error.what()), "nrta_tensor_write failed with NRT_INVALID (2): 8 bytes at 0 on core 0");
  }
  fake_nrt().fail_work(NRT_HW_ERROR);
  queue.read(bytes, a.get(), 0, 4, nullptr);
  EXPECT_EQ(queue.take_error().message, "neuron:0: copy from the device failed with NRT_HW_ERROR (6)");
}

// What a finished copy releases may itself be a tensor that an executable's sets name.
TEST_F(CoreQueueTest, ReleasedTensorsMayComeBackIntoTheLoader) {
  fake_nrt().set_auto_complete(false);
  CoreQueue& queue = CoreQueue::of(0);
  const auto executable = load_add_one();
  const nrt::Tensor a = filled(4, 1);
  auto b = std::make_shared<nrt::Tensor>(filled(4, 0));
  ASSERT_TRUE(run(*executable, a, *b).is_ok());
  fake_nrt().complete(NRTA_XU_COMPUTE, 1);
  uint8_t bytes[4] = {};
  nrt_tensor_t* const handle = b->get();
  const uint64_t ticket = queue.read(bytes, handle, 0, 4, std::move(b));
  fake_nrt().complete(NRTA_XU_TENSOR_READ, 1);
  const nrt::Tensor c = filled(4, 0);
  ASSERT_TRUE(run(*executable, a, c).is_ok());
  EXPECT_TRUE(queue.is_complete(ticket));
  EXPECT_EQ(bytes[0], 2);
  fake_nrt().complete(NRTA_XU_COMPUTE, 1);
  EXPECT_TRUE(queue.drain().is_ok());
  EXPECT_EQ(fake_nrt().live_tensors(), 2);
}

// On the chip the units have a queue each: the loader itself keeps copies and executions in order.
void read_after_write_on_the_chip() {
  use_fake("nrt");
  fake_nrt().set_auto_complete(false);
  CoreQueue& queue = CoreQueue::of(0);
  const nrt::Tensor a = filled(4, 0);
  const uint8_t bytes[4] = {7, 7, 7, 7};
  uint8_t target[4] = {};
  queue.write(a.get(), bytes, 0, 4, nullptr);
  std::thread device([] {
    std::this_thread::sleep_for(milliseconds(30));
    const bool early = fake_nrt().pending(NRTA_XU_TENSOR_READ) != 0;
    fake_nrt().complete(NRTA_XU_TENSOR_WRITE, 1);
    if (early) std::_Exit(1);
  });
  queue.read(target, a.get(), 0, 4, nullptr);
  device.join();
  fake_nrt().complete(NRTA_XU_TENSOR_READ, 1);
  std::_Exit(queue.drain().is_ok() && target[0] == 7 ? 0 : 2);
}

TEST(CoreQueueDeathTest, OnTheChipAnotherUnitWaitsForTheOneBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(read_after_write_on_the_chip(), testing::ExitedWithCode(0), "");
}

TEST(CoreQueueDeathTest, ABadTimeoutIsReportedWhenTheQueueIsMade) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        use_fake("host");
        setenv("NEURON_LIBTORCH_EXECUTION_TIMEOUT", "soon", 1);
        try {
          CoreQueue::of(0);
        } catch (const Error& error) {
          fprintf(stderr, "%s\n", error.what());
          std::_Exit(error.kind() == ErrorKind::kInvalid ? 0 : 1);
        }
        std::_Exit(2);
      },
      testing::ExitedWithCode(0), "NEURON_LIBTORCH_EXECUTION_TIMEOUT=soon must be a number of seconds");
}

}  // namespace
}  // namespace nxl::test
