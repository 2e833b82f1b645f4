// SPDX-License-Identifier: Apache-2.0
// A channel around another one that fails on order: for tests of everything that must survive a failing provider.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "core/api.h"
#include "kv/provider.h"

namespace nxl::kv {

// What happens to reads, counted from 1 over the life of the channel. Combines freely.
struct FaultPlan {
  uint64_t nth_read = 0;                   // only this one; 0: every read
  std::chrono::milliseconds delay{0};      // before the copy; ends early at stop or deadline
  std::chrono::milliseconds run_delay{0};  // before each run, which are then copied one by one
  bool drop = false;                       // nothing is copied and nothing reported: blocks until stop or deadline
  bool wrong_size = false;                 // the last run arrives without its last byte; reported as kIntegrity
  bool lie_about_size = false;             // as wrong_size, but reported as done: bytes_done tells
  bool corrupt = false;                    // the first byte that arrived is inverted; reported as done
  uint64_t fail_at_run = UINT64_MAX;       // runs before it are copied, then kProvider
  Cause fail_with = Cause::kProvider;      // cause of fail_at_run
  uint64_t fail_word = 0;                  // this read_word call, counted from 1, fails; 0: none
  bool lose_words = false;                 // read_word gives 0, as after the end of a lease
};

// `host` is the one whose regions `inner` writes to.
NXL_API std::unique_ptr<Channel> make_fault_channel(std::unique_ptr<Channel> inner, ProviderHost& host, FaultPlan plan);

// A provider whose channels are all wrapped; `plan` may be changed by its owner until the first read.
NXL_API std::unique_ptr<Provider> make_fault_provider(std::unique_ptr<Provider> inner, ProviderHost& host,
                                                      std::shared_ptr<const FaultPlan> plan);

}  // namespace nxl::kv
