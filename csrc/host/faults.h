// SPDX-License-Identifier: Apache-2.0
// Fault injection for tests of what is built on this runtime: NEURON_LIBTORCH_HOST_FAULTS.
//
// The variable is a comma-separated list of clauses, read once, at the process's first call:
//
//   CALL:STATUS        every call of CALL returns STATUS and does nothing
//   CALL:STATUS@N      only the N-th call (from 1) does
//   delay_ms:CALL=MS   every call of CALL waits MS milliseconds first (at most 60000)
//
// CALL is the name of an exported function that returns NRT_STATUS, or what a core's own thread runs: `execute`,
// `tensor_read`, `tensor_write`, `tensor_copy` (the status then reaches the waiter and the error tracker), or
// `sendrecv`, a message that send/receive is about to send: TIMEOUT keeps it for ever, INVALID takes its last byte away
// unreported, any other status is that of both requests. STATUS is a name of the enumeration with or without NRT_.
// Example:
//
//   NEURON_LIBTORCH_HOST_FAULTS=nrt_load:RESOURCE@3,execute:EXEC_HW_ERR_HBM_UE@2,delay_ms:execute=50
//
// A clause that cannot be read is left out, with a WARNING on stderr that gives the nearest name.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/calls.h"
#include "nrt_abi.h"

namespace nxl::host {

class Faults {
 public:
  // The faults of this process's environment.
  static Faults& instance();

  explicit Faults(std::string_view text);
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

  // Sleeps and counts as the clauses for `call` say; SUCCESS when none applies.
  NRT_STATUS inject(Call call) { return __builtin_expect(clauses_.empty(), 1) ? NRT_SUCCESS : inject_slow(call); }

  bool active() const { return !clauses_.empty(); }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Clause {
    Call call;
    NRT_STATUS status = NRT_SUCCESS;
    uint64_t nth = 0;  // 0: every call
    int delay_ms = 0;
  };
  void parse_clause(std::string_view clause);
  NRT_STATUS inject_slow(Call call);

  std::vector<Clause> clauses_;
  std::vector<std::string> warnings_;
  std::atomic<uint64_t> counts_[kCallCount] = {};
};

}  // namespace nxl::host
