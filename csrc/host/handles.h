// SPDX-License-Identifier: Apache-2.0
// Handles that can be checked: a kind, a slot and a generation in place of an address, so that a freed, foreign or
// made-up handle is INVALID_HANDLE and is never dereferenced.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "host/refusal.h"

namespace nxl::host {

// Layout: bits 0-7 kind, 8-31 slot, 32-63 generation (1 and up, so no handle is null).
enum class HandleKind : uint8_t {
  kTensor = 0x51,
  kTensorSet = 0x53,
  kModel = 0x55,
  kErrorTracker = 0x57,
  kCommunicator = 0x59,
  kSendRecvRequest = 0x5b,
};

template <typename T, HandleKind kind>
class HandleTable {
 public:
  void* insert(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    uint32_t slot;
    if (free_.empty()) {
      if (slots_.size() >= kMaxSlots) refuse(NRT_RESOURCE, "more than ", kMaxSlots, " live handles of one kind");
      slot = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
      free_.reserve(slots_.capacity());  // so that remove() cannot fail
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot].object = std::move(object);
    return encode(slot, slots_[slot].generation);
  }

  // Null when the handle is not a live one of this kind.
  std::shared_ptr<T> find(const void* handle) const {
    std::lock_guard lock(mutex_);
    const Slot* slot = locate(handle);
    return slot ? slot->object : nullptr;
  }

  // Throws INVALID_HANDLE.
  std::shared_ptr<T> get(const void* handle, const char* what) const {
    std::shared_ptr<T> object = find(handle);
    if (!object) refuse(NRT_INVALID_HANDLE, what, " handle ", handle, " is not a live one: freed, foreign or null");
    return object;
  }

  std::shared_ptr<T> remove(const void* handle) {
    std::lock_guard lock(mutex_);
    Slot* slot = const_cast<Slot*>(locate(handle));
    if (!slot) return nullptr;
    std::shared_ptr<T> object = std::move(slot->object);
    slot->object.reset();
    if (++slot->generation != 0) free_.push_back(static_cast<uint32_t>(slot - slots_.data()));
    return object;
  }

 private:
  static constexpr size_t kMaxSlots = 1u << 24;
  struct Slot {
    uint32_t generation = 1;
    std::shared_ptr<T> object;
  };

  static void* encode(uint32_t slot, uint32_t generation) {
    return reinterpret_cast<void*>((uint64_t{generation} << 32) | (uint64_t{slot} << 8) | static_cast<uint8_t>(kind));
  }

  const Slot* locate(const void* handle) const {
    const auto bits = reinterpret_cast<uint64_t>(handle);
    const uint64_t slot = (bits >> 8) & (kMaxSlots - 1);
    if ((bits & 0xff) != static_cast<uint8_t>(kind) || slot >= slots_.size()) return nullptr;
    const Slot& found = slots_[slot];
    return found.object && found.generation == bits >> 32 ? &found : nullptr;
  }

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace nxl::host
