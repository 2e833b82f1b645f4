// SPDX-License-Identifier: Apache-2.0
// Which tensors are named in a tensor set that an executable keeps. NRT demands that a tensor outlives every set that
// names it; executables keep their sets between runs, so before a tensor is freed the sets that name it are dropped.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "nrt/api.h"

namespace nxl::loader {

// Something that keeps sets. Lock order: Bindings' list, then the holder's own, then Bindings' counts.
class SetHolder {
 public:
  // Drops the sets that name `tensor`. Returns the ticket to wait for before asking again, 0 when all are dropped.
  virtual uint64_t forget(nrt_tensor_t* tensor) = 0;
  virtual int holder_core() const = 0;

 protected:
  ~SetHolder() = default;
};

class Bindings {
 public:
  static Bindings& get();  // never destroyed

  void add(SetHolder* holder);
  void remove(SetHolder* holder);
  void bound(nrt_tensor_t* tensor);
  void unbound(nrt_tensor_t* tensor);
  // Blocks while an execution in flight uses such a set, bounded by the execution timeout.
  void forget(nrt_tensor_t* tensor) noexcept;

 private:
  bool is_bound(nrt_tensor_t* tensor);

  std::mutex list_mutex_;
  std::vector<SetHolder*> holders_;
  std::mutex counts_mutex_;
  std::unordered_map<nrt_tensor_t*, uint32_t> counts_;
};

}  // namespace nxl::loader
