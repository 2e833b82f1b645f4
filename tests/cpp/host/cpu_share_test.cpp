// SPDX-License-Identifier: Apache-2.0
// The thread policy: CPUs divided by cores in use.
#include "host/cpu_share.h"

#include <gtest/gtest.h>

namespace nxl::host::testing {
namespace {

TEST(CpuShare, DividesByCoresInUse) {
  CpuShare share(8, 0, nullptr);
  EXPECT_EQ(8, share.threads());  // nobody uses a core yet: the first user has all
  EXPECT_TRUE(share.may_spin());
  share.core_taken_up();
  EXPECT_EQ(8, share.threads());
  share.core_taken_up();
  share.core_taken_up();
  EXPECT_EQ(2, share.threads());
  share.core_given_up();
  EXPECT_EQ(4, share.threads());
}

TEST(CpuShare, NeverBelowOneThreadAndNoSpinWhenFull) {
  CpuShare share(2, 0, nullptr);
  share.core_taken_up();
  EXPECT_TRUE(share.may_spin());
  share.core_taken_up();
  EXPECT_FALSE(share.may_spin());
  share.core_taken_up();
  EXPECT_EQ(1, share.threads());
}

TEST(CpuShare, OtherProcessesCount) {
  int looked = 0;
  CpuShare share(4, 0, [&] {
    ++looked;
    return 3;
  });
  share.core_taken_up();
  EXPECT_EQ(1, share.threads());
  EXPECT_FALSE(share.may_spin());
  share.threads();
  EXPECT_EQ(1, looked);  // once a second at most
}

TEST(CpuShare, AFixedNumberWins) {
  CpuShare share(4, 3, [] { return 60; });
  share.core_taken_up();
  share.core_taken_up();
  EXPECT_EQ(3, share.threads());
}

TEST(CpuShare, ThisProcessHasACpu) { EXPECT_LE(1, usable_cpus()); }

}  // namespace
}  // namespace nxl::host::testing
