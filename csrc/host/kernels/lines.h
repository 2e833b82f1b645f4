// SPDX-License-Identifier: Apache-2.0
// Lines along one dimension of N operands of one shape (that dimension's size may differ): sorts, scans, selections.
#pragma once

#include <algorithm>

#include "host/kernels/strided.h"

namespace nxl::host {

template <size_t N>
class Lines {
 public:
  // Operand 0's size along `dim` is what visit receives, and what the work is divided by.
  Lines(const std::array<at::Tensor, N>& tensors, int64_t dim) {
    std::vector<int64_t> sizes = tensors[0].sizes().vec();
    size_ = sizes[static_cast<size_t>(dim)];
    sizes.erase(sizes.begin() + dim);
    std::array<std::vector<int64_t>, N> strides;
    for (size_t n = 0; n < N; ++n) {
      strides[n] = byte_strides(tensors[n]);
      strides_[n] = strides[n][static_cast<size_t>(dim)];
      strides[n].erase(strides[n].begin() + dim);
      addresses_[n] = Address(tensors[n]);
    }
    nest_ = LoopNest<N>(sizes, strides);
  }

  // visit(pointers, byte strides, size) per line; lines are shared out over threads.
  template <typename Visit>
  void run(Visit&& visit) const {
    typename LoopNest<N>::Pointers bases;
    for (size_t n = 0; n < N; ++n) bases[n] = addresses_[n].get();
    nest_.run(
        bases,
        [&](auto p, const auto& s, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            visit(p, strides_, size_);
            for (size_t n = 0; n < N; ++n) p[n] += s[n];
          }
        },
        std::max<int64_t>(1, kGrain / std::max<int64_t>(1, size_)));
  }

 private:
  LoopNest<N> nest_;
  std::array<Address, N> addresses_;
  std::array<int64_t, N> strides_{};  // bytes, along the dimension
  int64_t size_ = 0;
};

}  // namespace nxl::host
