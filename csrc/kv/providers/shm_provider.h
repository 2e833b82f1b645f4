// SPDX-License-Identifier: Apache-2.0
// `shm`: the peer's memfds, mapped read-only here and copied from. The peer's CPU takes no part.
#pragma once

#include <memory>

#include "core/api.h"
#include "kv/provider.h"

namespace nxl::kv {

// Reaches regions whose descriptor came over the control connection's Unix socket.
std::unique_ptr<Provider> make_shm_provider(ProviderHost& host);

// One peer region mapped read-only. Why the descriptor is examined first: its owner is another process, and a file that
// can be cut, or whose pages may fail to appear, would end this one with SIGBUS.
class NXL_API SharedMapping {
 public:
  // Null with the reason in `why`: not a memfd sealed against shrinking and growing, smaller than the region says,
  // huge pages, or the kernel refused the mapping.
  static std::shared_ptr<const SharedMapping> map(const RemoteRegion& region, std::string* why);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::span<const std::byte> bytes() const { return {base_ + skipped_, bytes_}; }

 private:
  SharedMapping(const std::byte* base, uint64_t skipped, uint64_t bytes)
      : base_(base), skipped_(skipped), bytes_(bytes) {}
  const std::byte* base_;
  uint64_t skipped_;  // from the page's start to the region
  uint64_t bytes_;
};

}  // namespace nxl::kv
