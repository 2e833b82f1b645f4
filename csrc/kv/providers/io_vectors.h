// SPDX-License-Identifier: Apache-2.0
// A bounded list of memory for readv-like calls: neighbours join, and what was moved is taken off the front.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace nxl::kv {

class IoVectors {
 public:
  static constexpr size_t kMost = 1024;  // UIO_MAXIOV

  bool full() const { return end_ == kMost; }
  bool empty() const { return begin_ == end_; }
  size_t count() const { return end_ - begin_; }
  iovec* data() { return vectors_.data() + begin_; }
  void clear() { begin_ = end_ = 0; }

  // Call it only when not full. `bytes` > 0.
  void add(const void* address, size_t bytes) {
    if (!empty()) {
      iovec& last = vectors_[end_ - 1];
      if (static_cast<std::byte*>(last.iov_base) + last.iov_len == address) {
        last.iov_len += bytes;
        return;
      }
    }
    vectors_[end_++] = {const_cast<void*>(address), bytes};
  }

  void consume(size_t bytes) {
    for (; bytes != 0 && vectors_[begin_].iov_len <= bytes; ++begin_) bytes -= vectors_[begin_].iov_len;
    if (begin_ == end_) return clear();
    vectors_[begin_].iov_base = static_cast<std::byte*>(vectors_[begin_].iov_base) + bytes;
    vectors_[begin_].iov_len -= bytes;
  }

 private:
  std::array<iovec, kMost> vectors_;  // not initialised: [begin_, end_) is filled
  size_t begin_ = 0, end_ = 0;
};

}  // namespace nxl::kv
