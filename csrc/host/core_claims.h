// SPDX-License-Identifier: Apache-2.0
// Which cores this process has: the visible list, and the host-wide claim on each.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace nxl::host {

inline constexpr int kTotalCores = 64;  // what nrt_get_total_vnc_count says: absolute ids are 0 to 63
inline constexpr int kDefaultCores = 2;

// What the environment asks for. NEURON_RT_VISIBLE_CORES (ids and ranges, "0-1,3", in the order given) goes before
// NEURON_RT_NUM_CORES (as many free cores as that); neither: cores 0 and 1, private to the process.
struct CoreSelection {
  std::vector<int> ids;  // absolute; empty when `count` free ones are to be found
  int count = 0;
  bool host_wide = false;

  static CoreSelection from_environment();  // throws INVALID
};

// NEURON_LIBTORCH_HOST_CLAIM_DIR or the user's own folder under /tmp, made when it is missing (mode 0700). Throws
// FAILURE when it is not this user's directory.
std::string claim_folder();

// Claims are locks on one file a core in a folder of the user's (NEURON_LIBTORCH_HOST_CLAIM_DIR, else
// /tmp/neuron-host-cores-<uid>), which holds the owner's pid. The kernel drops them when the process ends. They are
// open-file-description locks: unlike flock's they can be looked at without being taken.
class CoreClaims {
 public:
  // Takes every core of the selection or none: throws NC_BUSY naming core and owner. Private selections take no lock.
  static std::unique_ptr<CoreClaims> take(const CoreSelection& selection);
  ~CoreClaims();
  CoreClaims(const CoreClaims&) = delete;
  CoreClaims& operator=(const CoreClaims&) = delete;

  const std::vector<int>& ids() const { return ids_; }
  bool host_wide() const { return host_wide_; }

  // Cores claimed on this host by this user's processes other than this one; 0 when private.
  int claimed_by_others() const;

  // For the child after fork: closes its copies of the descriptors, so that it does not keep the parent's claims
  // alive. Async-signal-safe.
  void close_descriptors() noexcept;

 private:
  CoreClaims() = default;
  bool try_claim(int core);  // false when another process has it
  std::string path(int core) const;

  std::string folder_;
  std::vector<int> ids_;
  std::vector<int> descriptors_;
  bool host_wide_ = false;
};

}  // namespace nxl::host
