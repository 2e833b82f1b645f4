// SPDX-License-Identifier: Apache-2.0
// Closing the runtime under live objects, and forking with it. A process closes once, so each test is a process.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/error.h"
#include "loader/fake_core.h"

namespace nxl::test {
namespace {

using loader::CoreQueue;
using loader::Executable;

#define REQUIRE(condition)                                    \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      std::_Exit(1);                                          \
    }                                                         \
  } while (0)

class CloseDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    use_fake("host");
  }
};

struct Live {
  nrt::Tensor a = filled(4, 1);
  nrt::Tensor b = filled(4, 0);
  std::shared_ptr<Executable> executable =
      Executable::load(make_neff("add_one", {{{"input0", 4}}, {{"output0", 4}}, {}}), 0);
  Status run(uint64_t* ticket) {
    const std::array<nrt_tensor_t*, 1> inputs = {a.get()};
    const std::array<nrt_tensor_t*, 1> outputs = {b.get()};
    return executable->run(inputs, outputs, ticket);
  }
};

void close_with_live_objects() {
  {
    Live live;
    uint64_t ticket = 0;
    REQUIRE(live.run(&ticket).is_ok());
    const std::shared_ptr<nrt::Runtime> runtime = nrt::Runtime::get();
    nrt::Runtime::close();
    nrt::Runtime::close();
    REQUIRE(fake_nrt().times_closed() == 1);
    REQUIRE(!runtime->is_open());
    REQUIRE(nrt::Runtime::get_if_initialized() == nullptr);
    REQUIRE(live.run(&ticket).code == NRT_CLOSED);
    REQUIRE(live.a.address() == nullptr);
    REQUIRE(CoreQueue::find(0)->drain().is_ok());
    REQUIRE(CoreQueue::find(0)->take_error().is_ok());
    live.executable->close();
    try {
      nrt::Runtime::get();
      REQUIRE(false);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::kClosed);
    }
    uint8_t byte = 0;
    try {
      CoreQueue::find(0)->read(&byte, live.a.get(), 0, 1, nullptr);
      REQUIRE(false);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::kClosed);
    }
  }
  REQUIRE(fake_nrt().calls_after_close() == 0);
  std::_Exit(0);
}

TEST_F(CloseDeathTest, LiveObjectsAreHarmless) {
  EXPECT_EXIT(close_with_live_objects(), testing::ExitedWithCode(0), "");
}

void close_waits_for_work() {
  Live live;
  fake_nrt().set_auto_complete(false);
  uint64_t ticket = 0;
  REQUIRE(live.run(&ticket).is_ok());
  std::thread device([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    REQUIRE(fake_nrt().times_closed() == 0);
    fake_nrt().complete(NRTA_XU_COMPUTE, 1);
  });
  nrt::Runtime::close();
  device.join();
  REQUIRE(fake_nrt().pending(NRTA_XU_COMPUTE) == 0);
  REQUIRE(CoreQueue::find(0)->take_error().is_ok());
  std::_Exit(0);
}

TEST_F(CloseDeathTest, WaitsForWorkInFlight) { EXPECT_EXIT(close_waits_for_work(), testing::ExitedWithCode(0), ""); }

void close_abandons_stuck_work() {
  Live live;
  fake_nrt().set_auto_complete(false);
  uint64_t ticket = 0;
  REQUIRE(live.run(&ticket).is_ok());
  Status waited;
  std::thread waiter([&] { waited = CoreQueue::find(0)->wait(ticket, std::chrono::seconds(60)); });
  nrt::Runtime::close();  // 10 s: the bound
  waiter.join();
  REQUIRE(waited.is_ok());  // nothing is in flight any more; the error says why
  REQUIRE(CoreQueue::find(0)->idle());
  const Status error = CoreQueue::find(0)->take_error();
  REQUIRE(error.code == NRT_CLOSED);
  REQUIRE(error.message.find("'add_one'") != std::string::npos);
  std::_Exit(0);
}

TEST_F(CloseDeathTest, WorkThatNeverEndsIsAnErrorAfterTenSeconds) {
  EXPECT_EXIT(close_abandons_stuck_work(), testing::ExitedWithCode(0), "");
}

// The child does everything that a child might do with inherited objects, and leaves with 0.
int use_in_child(Live& live) {
  alarm(20);
  uint64_t ticket = 0;
  if (live.run(&ticket).code != NRT_CLOSED) return 1;
  CoreQueue& queue = *CoreQueue::find(0);
  if (!queue.idle() || !queue.is_complete(1) || !queue.take_error().is_ok()) return 2;
  if (nrt::Runtime::get_if_initialized() != nullptr || nrt::visible_core_count() != 2) return 3;
  try {
    nrt::Runtime::get();
    return 4;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnavailable || std::string(error.what()).find("fork") == std::string::npos)
      return 5;
  }
  nrt::Runtime::close();
  live.executable->close();
  live.executable.reset();
  live.a = nrt::Tensor();
  live.b = nrt::Tensor();
  return 0;
}

void fork_under_load() {
  Live live;
  std::atomic<bool> stop{false};
  // Another thread holds the locks of the loader most of the time, so the child inherits them held.
  std::thread busy([&] {
    uint64_t ticket = 0;
    while (!stop) live.run(&ticket);
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(use_in_child(live));
    int result = 0;
    REQUIRE(waitpid(child, &result, 0) == child);
    REQUIRE(WIFEXITED(result));
    if (WEXITSTATUS(result) != 0) fprintf(stderr, "the child left with %d\n", WEXITSTATUS(result));
    REQUIRE(WEXITSTATUS(result) == 0);
  }
  stop = true;
  busy.join();
  uint64_t ticket = 0;
  REQUIRE(live.run(&ticket).is_ok());
  std::_Exit(0);
}

TEST_F(CloseDeathTest, AForkedChildGetsAnErrorAndNeverHangs) {
  EXPECT_EXIT(fork_under_load(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace nxl::test
