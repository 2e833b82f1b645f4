// SPDX-License-Identifier: Apache-2.0
// Loading, initialising and asking the runtime. A process initialises once, so most tests are a process.
#include "nrt/runtime.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "fake_nrt/fake_nrt.h"

namespace nxl::test {
namespace {

using nrt::Runtime;

[[noreturn]] void leave_with(const Error& error) {
  fprintf(stderr, "%d %d %s\n", static_cast<int>(error.kind()), error.nrt_status(), error.what());
  std::_Exit(3);
}

[[noreturn]] void get_with(const char* runtime, const char* library, NRT_STATUS init_status = NRT_SUCCESS) {
  setenv("NEURON_LIBTORCH_RUNTIME", runtime, 1);
  if (library != nullptr) {
    setenv("NEURON_LIBTORCH_NRT_LIBRARY", library, 1);
  } else {
    unsetenv("NEURON_LIBTORCH_NRT_LIBRARY");
  }
  fake_nrt().set_init_status(init_status);
  try {
    Runtime::get();
  } catch (const Error& error) {
    leave_with(error);
  }
  std::_Exit(0);
}

std::string kind(ErrorKind kind) { return "^" + std::to_string(static_cast<int>(kind)) + " "; }

class RuntimeDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    unsetenv("NEURON_LIBTORCH_LOG_LEVEL");
  }
};

TEST_F(RuntimeDeathTest, AMissingLibraryIsAnErrorWithTheRemedy) {
  EXPECT_EXIT(get_with("nrt", "/nonexistent/libnrt.so.1"), testing::ExitedWithCode(3),
              kind(ErrorKind::kUnavailable) + "0 cannot load /nonexistent/libnrt.so.1.*NEURON_LIBTORCH_RUNTIME=host");
  EXPECT_EXIT(get_with("host", "/nonexistent/libnrt_host.so"), testing::ExitedWithCode(3),
              "cannot load /nonexistent/libnrt_host.so.*Reinstall the package");
}

TEST_F(RuntimeDeathTest, TheSonameIsTriedThenTheDocumentedFolder) {
  EXPECT_EXIT(get_with("nrt", nullptr), testing::ExitedWithCode(3),
              "cannot load libnrt.so.1: .*cannot load /opt/aws/neuron/lib/libnrt.so.1: ");
}

TEST_F(RuntimeDeathTest, AMissingSymbolIsNamed) {
  EXPECT_EXIT(get_with("host", FAKE_NRT_INCOMPLETE_LIBRARY), testing::ExitedWithCode(3),
              kind(ErrorKind::kUnavailable) + "0 .*does not export nrta_execute_schedule; an NRT library with API 2.0");
}

TEST_F(RuntimeDeathTest, AnUnknownWordIsInvalid) {
  EXPECT_EXIT(get_with("gpu", nullptr), testing::ExitedWithCode(3), kind(ErrorKind::kInvalid));
}

TEST_F(RuntimeDeathTest, AFailedInitCarriesTheStatusName) {
  EXPECT_EXIT(
      get_with("host", FAKE_NRT_LIBRARY, NRT_EXEC_NC_BUSY), testing::ExitedWithCode(3),
      kind(ErrorKind::kUnavailable) + "1005 nrt_init failed with NRT_EXEC_NC_BUSY \\(1005\\).*NEURON_RT_VISIBLE_CORES");
}

void get_with_cores(const char* cores, NRT_STATUS status) {
  setenv("NEURON_RT_VISIBLE_CORES", cores, 1);
  get_with("host", FAKE_NRT_LIBRARY, status);
}

// NRT states only that something is wrong, or busy: what was asked of it must be in the message.
TEST_F(RuntimeDeathTest, AFailedInitNamesTheSettingsItWasGiven) {
  EXPECT_EXIT(get_with_cores("0-", NRT_INVALID), testing::ExitedWithCode(3),
              "nrt_init failed with NRT_INVALID \\(2\\).*Check NEURON_RT_VISIBLE_CORES=0-");
  EXPECT_EXIT(get_with_cores("3", NRT_EXEC_NC_BUSY), testing::ExitedWithCode(3),
              "choose free ones with NEURON_RT_VISIBLE_CORES \\(set here: NEURON_RT_VISIBLE_CORES=3\\)");
}

void get_mismatched(const char* runtime, const char* stands_for) {
  setenv("FAKE_NRT_STANDS_FOR", stands_for, 1);
  get_with(runtime, FAKE_NRT_LIBRARY);
}

TEST_F(RuntimeDeathTest, ALibraryOfTheOtherKindIsRefused) {
  EXPECT_EXIT(get_mismatched("nrt", "host"), testing::ExitedWithCode(3),
              "is the host runtime, but NEURON_LIBTORCH_RUNTIME=nrt asks .*set NEURON_LIBTORCH_RUNTIME=host");
  EXPECT_EXIT(get_mismatched("host", "nrt"), testing::ExitedWithCode(3),
              "is not the host runtime, but NEURON_LIBTORCH_RUNTIME=host asks .*set NEURON_LIBTORCH_RUNTIME=nrt");
}

void init_after_a_failure() {
  setenv("NEURON_LIBTORCH_RUNTIME", "host", 1);
  setenv("NEURON_LIBTORCH_NRT_LIBRARY", FAKE_NRT_LIBRARY, 1);
  fake_nrt().set_init_status(NRT_EXEC_NC_BUSY);
  try {
    Runtime::get();
  } catch (const Error&) {
    if (Runtime::get_if_initialized() != nullptr) std::_Exit(1);
    fake_nrt().set_init_status(NRT_SUCCESS);  // the other process is gone
    std::_Exit(Runtime::get()->is_open() ? 0 : 2);
  }
  std::_Exit(3);
}

TEST_F(RuntimeDeathTest, InitCanBeTriedAgain) {
  EXPECT_EXIT(init_after_a_failure(), testing::ExitedWithCode(0), "^$");  // and a plain host run says nothing
}

void count_first() {
  setenv("NEURON_LIBTORCH_RUNTIME", "host", 1);
  setenv("NEURON_LIBTORCH_NRT_LIBRARY", FAKE_NRT_LIBRARY, 1);
  Runtime::close();  // nothing to close, and no bar to what follows
  if (nrt::visible_core_count() != 2 || Runtime::get_if_initialized() != nullptr) std::_Exit(1);
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  const Runtime* const first = Runtime::get().get();
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { same += Runtime::get().get() == first ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  std::_Exit(same == 4 && nrt::visible_core_count() == 2 && fake_nrt().violations().empty() ? 0 : 2);
}

TEST_F(RuntimeDeathTest, CountsWithoutInitAndInitialisesOnce) {
  EXPECT_EXIT(count_first(), testing::ExitedWithCode(0), "");
}

class RuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("NEURON_LIBTORCH_RUNTIME", "host", 1);
    setenv("NEURON_LIBTORCH_NRT_LIBRARY", FAKE_NRT_LIBRARY, 1);
    fake_nrt().reset();
  }
};

TEST_F(RuntimeTest, Answers) {
  const std::shared_ptr<Runtime> runtime = Runtime::get();
  EXPECT_TRUE(runtime->is_open());
  EXPECT_TRUE(runtime->is_host());
  EXPECT_EQ(runtime->choice().dlopen_name, FAKE_NRT_LIBRARY);
  EXPECT_EQ(runtime->core_count(), 2);
  EXPECT_EQ(runtime->version(), "2.0.51864.0 libnrt_host stand-in");
  EXPECT_EQ(runtime->status_name(NRT_EXEC_OOB), "NRT_EXEC_OOB");
  EXPECT_EQ(runtime->memory(1).second, 1u << 20);
  EXPECT_EQ(Runtime::get_if_initialized(), runtime);
  EXPECT_EQ(runtime->api().nrt_load_collectives, nullptr);  // optional, and the fake has none
  EXPECT_FALSE(nrt::in_forked_child());
}

TEST_F(RuntimeTest, ABadCoreNamesRangeAndVariable) {
  for (const int core : {-1, 2}) {
    try {
      Runtime::get()->memory(core);
      FAIL() << core;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_EQ(
          std::string(error.what()),
          "core " + std::to_string(core) +
              " does not exist: this process sees 2 cores (0 to 1); NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES "
              "sets which");
    }
  }
}

TEST_F(RuntimeTest, StatusesBecomeErrorsOfTheirKind) {
  Runtime::get();
  const std::vector<std::pair<int, ErrorKind>> expected = {{NRT_INVALID, ErrorKind::kInvalid},
                                                           {NRT_INVALID_HANDLE, ErrorKind::kInvalid},
                                                           {NRT_CLOSED, ErrorKind::kClosed},
                                                           {NRT_UNINITIALIZED, ErrorKind::kUnavailable},
                                                           {NRT_EXEC_NC_BUSY, ErrorKind::kUnavailable},
                                                           {NRT_FAIL_HOST_MEM_ALLOC, ErrorKind::kOutOfMemory},
                                                           {NRT_EXEC_OOB, ErrorKind::kExecution},
                                                           {NRT_HW_ERROR, ErrorKind::kExecution}};
  for (const auto& [status, kind] : expected) {
    try {
      NXL_NRT_CHECK(status, "nrt_call", "the thing");
      FAIL() << status;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << status;
      EXPECT_EQ(error.nrt_status(), status);
      EXPECT_EQ(std::string(error.what()), "nrt_call failed with " + Runtime::get()->status_name(status) + " (" +
                                               std::to_string(status) + "): the thing");
    }
  }
  EXPECT_NO_THROW(NXL_NRT_CHECK(0, "nrt_call", "the thing"));
}

}  // namespace
}  // namespace nxl::test
