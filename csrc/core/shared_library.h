// SPDX-License-Identifier: Apache-2.0
// A library opened at run time, and its symbols. Move-only; closed with its owner.
#pragma once

#include <string>

#include "core/api.h"
#include "core/unique_handle.h"

namespace nxl {

class NXL_API SharedLibrary {
 public:
  // Throws Error(kUnavailable) with the loader's own text.
  static SharedLibrary open(const std::string& path);
  // The directory of the shared object that holds `address`, without a trailing slash; empty when it is not known.
  static std::string directory_of(const void* address);

  SharedLibrary() = default;
  explicit operator bool() const { return static_cast<bool>(handle_); }
  void* symbol(const char* name) const;  // nullptr when absent
  const std::string& path() const { return path_; }

 private:
  struct Traits {
    using Handle = void*;
    static constexpr Handle kEmpty = nullptr;
    static void close(Handle handle) noexcept;
  };
  UniqueHandle<Traits> handle_;
  std::string path_;
};

}  // namespace nxl
