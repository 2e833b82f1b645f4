// SPDX-License-Identifier: Apache-2.0
// Runs a test's body in a process of its own: nrt_init works once per process, and some tests end the process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace nxl::host::testing {

using Environment = std::map<std::string, std::string>;

inline bool in_fresh_process() { return std::getenv("NXL_TEST_FRESH_PROCESS") != nullptr; }

// Starts this binary again for `test` ("Suite.Name") with the variables added; returns the child's pid.
inline pid_t start_self(const std::string& test, const Environment& environment) {
  const std::string filter = "--gtest_filter=" + test;
  const pid_t child = fork();
  if (child == 0) {
    setenv("NXL_TEST_FRESH_PROCESS", "1", 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execl("/proc/self/exe", "host_test", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr);
    _exit(127);
  }
  return child;
}

// The exit code; -signal when a signal ended it.
inline int wait_for_exit(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline std::string current_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(info->test_suite_name()) + "." + info->name();
}

}  // namespace nxl::host::testing

// First statement of a test: the rest of the body runs in a new process with these variables.
#define NXL_FRESH_PROCESS(...)                                                                            \
  if (!nxl::host::testing::in_fresh_process()) {                                                          \
    ASSERT_EQ(0, nxl::host::testing::wait_for_exit(nxl::host::testing::start_self(                        \
                     nxl::host::testing::current_test(), nxl::host::testing::Environment{__VA_ARGS__}))); \
    return;                                                                                               \
  }
