// SPDX-License-Identifier: Apache-2.0
// Tensor sets: tensors by name, and their resolution against a model's signature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "host/tensors.h"
#include "neff/reader.h"

namespace nxl::host {

// A model's inputs, or its outputs, bound to memory. Immutable, so one object serves every queued execution until the
// set changes; it keeps the memory alive.
struct Binding {
  struct Entry {
    void* handle;  // what the caller put into the set
    std::shared_ptr<Tensor> tensor;
    uint32_t version;
    std::shared_ptr<const Storage> storage;
  };
  uint64_t model_id = 0;
  std::vector<Entry> entries;    // signature order
  std::vector<void*> addresses;  // same order
  // The memory of the entries that have any, sorted by start.
  struct Range {
    const std::byte* begin;
    const std::byte* end;
    uint32_t index;
    uint32_t reach = 0;  // position of the range that ends last among this one and those before it
  };
  std::vector<Range> sorted;

  // A range that shares memory with [begin, end), or nullptr.
  const Range* overlapping(const std::byte* begin, const std::byte* end) const;
};

// Thread safe. The caller keeps every tensor alive as long as the set (nrt's contract); one that was freed all the
// same is reported, not touched.
class TensorSet {
 public:
  void add(std::string_view name, void* handle, std::shared_ptr<Tensor> tensor);
  void* find(std::string_view name) const;  // the handle given to add; nullptr when absent

  // Throws INVALID naming the tensor that is missing, unknown, freed, on another core, or of another size. `usage` is
  // "input" or "output", for the text.
  std::shared_ptr<const Binding> bind(uint64_t model_id, const std::vector<neff::Variable>& variables, int core,
                                      const char* usage);

 private:
  struct Member {
    void* handle;
    std::shared_ptr<Tensor> tensor;
  };
  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::string, Member, NameHash, std::equal_to<>> members_;
  std::shared_ptr<const Binding> cached_;
};

}  // namespace nxl::host
