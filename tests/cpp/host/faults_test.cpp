// SPDX-License-Identifier: Apache-2.0
// The fault variable: grammar, counting, warnings with the nearest name.
#include "host/faults.h"

#include <gtest/gtest.h>

#include <chrono>

namespace nxl::host::testing {
namespace {

TEST(Faults, NoneByDefault) {
  Faults faults("");
  EXPECT_FALSE(faults.active());
  EXPECT_EQ(NRT_SUCCESS, faults.inject(Call::nrt_load));
}

TEST(Faults, CountsCallsFromOne) {
  Faults faults("nrt_load:RESOURCE@3,execute:NRT_EXEC_HW_ERR_HBM_UE");
  EXPECT_TRUE(faults.warnings().empty());
  EXPECT_EQ(NRT_SUCCESS, faults.inject(Call::nrt_load));
  EXPECT_EQ(NRT_SUCCESS, faults.inject(Call::nrt_load));
  EXPECT_EQ(NRT_RESOURCE, faults.inject(Call::nrt_load));
  EXPECT_EQ(NRT_SUCCESS, faults.inject(Call::nrt_load));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(NRT_EXEC_HW_ERR_HBM_UE, faults.inject(Call::execute));
  EXPECT_EQ(NRT_SUCCESS, faults.inject(Call::nrt_unload));
}

TEST(Faults, SeveralClausesForOneCall) {
  Faults faults("execute:TIMEOUT@1,execute:HW_ERROR@2");
  EXPECT_EQ(NRT_TIMEOUT, faults.inject(Call::execute));
  EXPECT_EQ(NRT_HW_ERROR, faults.inject(Call::execute));
  EXPECT_EQ(NRT_SUCCESS, faults.inject(Call::execute));
}

TEST(Faults, DelaysWaitAtLeastThatLong) {
  Faults faults("delay_ms:execute=30");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(NRT_SUCCESS, faults.inject(Call::execute));
  EXPECT_LE(std::chrono::milliseconds(30), std::chrono::steady_clock::now() - start);
}

TEST(Faults, WhatCannotBeReadIsLeftOutAndNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"nrt_lod:RESOURCE", "nrt_load"}, {"nrt_load:RESOURCES", "RESOURCE"},      {"excute:TIMEOUT@2", "execute"},
      {"nrt_load", "CALL:STATUS"},      {"nrt_load:RESOURCE@0", "from 1"},       {"nrt_load:RESOURCE@x", "from 1"},
      {"delay_ms:execute", "CALL=MS"},  {"delay_ms:execute=-1", "CALL=MS"},      {"delay_ms:execute=60001", "CALL=MS"},
      {"delay_ms:exec=5", "execute"},   {"nrt_tensor_free:RESOURCE", "no call"},
  };
  for (const auto& [text, part] : cases) {
    Faults faults(text);
    ASSERT_EQ(1u, faults.warnings().size()) << text;
    EXPECT_NE(std::string::npos, faults.warnings()[0].find(part)) << faults.warnings()[0];
    EXPECT_NE(std::string::npos, faults.warnings()[0].find(text)) << faults.warnings()[0];
    EXPECT_FALSE(faults.active()) << text;
  }
  Faults mixed("nonsense,nrt_load:RESOURCE,,");
  EXPECT_EQ(1u, mixed.warnings().size());
  EXPECT_EQ(NRT_RESOURCE, mixed.inject(Call::nrt_load));
}

}  // namespace
}  // namespace nxl::host::testing
