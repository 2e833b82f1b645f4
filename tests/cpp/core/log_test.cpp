// SPDX-License-Identifier: Apache-2.0
// The log: its threshold, its line and its quiet default. The level is read once, so each level runs in a child
// process.
#include "core/log.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace nxl {
namespace {

[[noreturn]] void log_three_lines(const char* level) {
  if (level != nullptr) {
    setenv("NEURON_LIBTORCH_LOG_LEVEL", level, 1);
  } else {
    unsetenv("NEURON_LIBTORCH_LOG_LEVEL");
  }
  NXL_LOG(kDebug, "one ", 1);
  NXL_LOG(kWarning, "two ", 2);
  NXL_LOG(kError, "three ", 3);
  std::_Exit(0);
}

TEST(LogDeathTest, DefaultShowsWarningsAndErrorsOnly) {
  EXPECT_EXIT(log_three_lines(nullptr), testing::ExitedWithCode(0),
              "^\\[libtorch_neuronx_lite\\] WARNING two 2\n\\[libtorch_neuronx_lite\\] ERROR three 3\n$");
}

TEST(LogDeathTest, LevelIsReadWithoutRegardToCase) {
  EXPECT_EXIT(log_three_lines("Debug"), testing::ExitedWithCode(0), "^\\[libtorch_neuronx_lite\\] DEBUG one 1\n");
  EXPECT_EXIT(log_three_lines("OFF"), testing::ExitedWithCode(0), "^$");
}

TEST(LogDeathTest, UnknownLevelIsReportedAndCountsAsWarning) {
  EXPECT_EXIT(log_three_lines("loud"), testing::ExitedWithCode(0),
              "NEURON_LIBTORCH_LOG_LEVEL=loud is not one of.*\n.*WARNING two 2\n");
}

}  // namespace
}  // namespace nxl
