// SPDX-License-Identifier: Apache-2.0
// Move-only owner of a C handle (a pointer or a file descriptor). A moved-from one is empty.
#pragma once

#include <unistd.h>

#include <utility>

namespace nxl {

// Traits: `using Handle`, `static constexpr Handle kEmpty`, `static void close(Handle) noexcept`.
template <typename Traits>
class UniqueHandle {
 public:
  using Handle = typename Traits::Handle;

  UniqueHandle() = default;
  explicit UniqueHandle(Handle handle) : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueHandle() { reset(); }

  explicit operator bool() const { return handle_ != Traits::kEmpty; }
  Handle get() const { return handle_; }
  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, Traits::kEmpty); }
  void reset(Handle handle = Traits::kEmpty) noexcept {
    const Handle old = std::exchange(handle_, handle);
    if (old != Traits::kEmpty) Traits::close(old);
  }

 private:
  Handle handle_ = Traits::kEmpty;
};

struct FileDescriptorTraits {
  using Handle = int;
  static constexpr Handle kEmpty = -1;
  static void close(Handle fd) noexcept { ::close(fd); }
};
using UniqueFd = UniqueHandle<FileDescriptorTraits>;

}  // namespace nxl
