// SPDX-License-Identifier: Apache-2.0
// Control over libfake_nrt.so, an NRT library whose executions finish when a test says so and fail as it says. It
// records calls that break NRT's contracts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nrt_abi.h"

namespace nxl::test {

class FakeNrt {
 public:
  // Everything back to: complete at once, no errors, depth 8, 1 MiB a core, mapped. Live handles stay.
  virtual void reset() = 0;
  virtual void set_auto_complete(bool on) = 0;
  virtual void set_depth(size_t depth) = 0;
  virtual void set_init_status(NRT_STATUS status) = 0;
  virtual void set_memory_limit(size_t bytes) = 0;
  // Whether nrt_tensor_get_va gives an address for device memory, as NRT does with NEURON_RT_MAP_HBM=1.
  virtual void set_device_memory_mapped(bool on) = 0;
  // Whether nrta_error_tracker_get_list leaves what it returned in the list.
  virtual void set_tracker_keeps(bool on) = 0;
  virtual void set_completion_fd_works(bool on) = 0;
  // The next `count` calls of nrta_execute_schedule return `status`.
  virtual void refuse_executions(NRT_STATUS status, int count) = 0;
  // Work scheduled from now on fails with this status when it completes; SUCCESS ends that.
  virtual void fail_work(NRT_STATUS status) = 0;
  // nrta_is_completed returns this from now on; SUCCESS ends that.
  virtual void set_completion_query_status(NRT_STATUS status) = 0;
  // Completes the oldest `count` pieces of work of a unit, running their effect: byte i of every output becomes byte i
  // of input 0 plus 1; a copy copies. Returns how many there were.
  virtual size_t complete(nrta_xu_t unit, size_t count) = 0;

  virtual size_t pending(nrta_xu_t unit) = 0;
  virtual int live_tensors() = 0;
  virtual int live_sets() = 0;
  virtual int live_models() = 0;
  virtual int calls_after_close() = 0;
  virtual int times_closed() = 0;
  virtual int adds() = 0;            // calls of nrt_add_tensor_to_tensor_set so far
  virtual int completion_fds() = 0;  // descriptors handed out so far
  // Broken contracts so far, such as "executed a set that names a freed tensor".
  virtual std::vector<std::string> violations() = 0;

 protected:
  ~FakeNrt() = default;
};

// Opens the library by its path and returns its control.
FakeNrt& fake_nrt();

// A host or chip NEFF of the given variables: sizes in bytes, one u8 each. `aliases`: output to input.
struct Signature {
  std::map<std::string, uint64_t> inputs;  // in var_id order when sorted by name
  std::map<std::string, uint64_t> outputs;
  std::map<std::string, std::string> aliases;
};
std::vector<std::byte> make_neff(const std::string& name, const Signature& signature,
                                 const std::string& target = "host");

}  // namespace nxl::test
