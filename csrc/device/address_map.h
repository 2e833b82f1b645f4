// SPDX-License-Identifier: Apache-2.0
// From an address to the segment it lies in: for tensors whose storage was wrapped by others (DLPack, from_blob).
#pragma once

#include <cstddef>
#include <map>
#include <shared_mutex>

#include "device/segment.h"

namespace nxl::device {

// Thread safe. The segment found stays alive while the caller holds a tensor in it.
class AddressMap {
 public:
  static AddressMap& get();

  void add(Segment* segment);
  void remove(Segment* segment) noexcept;
  Segment* find(const void* address) const noexcept;  // nullptr when the address is in no segment

 private:
  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, Segment*> by_base_;
};

}  // namespace nxl::device
