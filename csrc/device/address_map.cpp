// SPDX-License-Identifier: Apache-2.0
// AddressMap: an ordered map by base address.
#include "device/address_map.h"

#include <mutex>

namespace nxl::device {

AddressMap& AddressMap::get() {
  static AddressMap* const instance =
      new AddressMap();  // leaked: deleters of other libraries may run after our statics
  return *instance;
}

void AddressMap::add(Segment* segment) {
  const std::unique_lock lock(mutex_);
  by_base_[segment->base()] = segment;
}

void AddressMap::remove(Segment* segment) noexcept {
  const std::unique_lock lock(mutex_);
  by_base_.erase(segment->base());
}

Segment* AddressMap::find(const void* address) const noexcept {
  const auto* byte = static_cast<const std::byte*>(address);
  const std::shared_lock lock(mutex_);
  auto it = by_base_.upper_bound(byte);
  if (it == by_base_.begin()) return nullptr;
  --it;
  return byte < it->first + it->second->size() ? it->second : nullptr;
}

}  // namespace nxl::device
