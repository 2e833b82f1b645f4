// SPDX-License-Identifier: Apache-2.0
// Loops over strided operands: dimensions are ordered and merged once, at prepare time, and a run only walks pointers.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "host/kernels/step_context.h"

namespace nxl::host {

// Elements per thread below which a second thread costs more than it brings; ATen's own figure.
inline constexpr int64_t kGrain = 32768;

// Dimensions a loop may have after merging.
inline constexpr size_t kMaxRank = 16;

// Where a tensor begins; stays right when the buffer behind it is rebound.
class Address {
 public:
  Address() = default;
  explicit Address(const at::Tensor& tensor)
      : storage_(tensor.storage()), offset_(tensor.storage_offset() * static_cast<int64_t>(tensor.element_size())) {}
  char* get() const {
    return static_cast<char*>(storage_.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()) + offset_;
  }

 private:
  c10::Storage storage_;
  int64_t offset_ = 0;  // bytes
};

// The same window read as another type of the same width.
inline at::Tensor reinterpret(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.scalar_type() == dtype) return tensor;
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return view;
}

// A window of other sizes and strides (elements) on the memory of `tensor`.
inline at::Tensor rewindow(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()),
                                                       c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return view;
}

inline std::vector<int64_t> byte_strides(const at::Tensor& tensor) {
  std::vector<int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  for (int64_t& stride : strides) stride *= static_cast<int64_t>(tensor.element_size());
  return strides;
}

// An index space walked by N operands. The innermost dimension is the one operand 0 steps through most finely.
template <size_t N>
class LoopNest {
 public:
  using Pointers = std::array<char*, N>;
  using Strides = std::array<int64_t, N>;  // bytes

  LoopNest() = default;
  LoopNest(at::IntArrayRef sizes, const std::array<std::vector<int64_t>, N>& strides) {
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      // Equal strides (broadcasts in operand 0) fall to the next operand; ties keep the last dimension innermost.
      for (size_t n = 0; n < N; ++n) {
        const int64_t sa = std::abs(strides[n][a]), sb = std::abs(strides[n][b]);
        if (sa != sb) return sa < sb;
      }
      return a > b;
    });
    for (size_t d : order) {
      count_ *= sizes[d];
      if (sizes[d] == 1) continue;
      Strides step;
      for (size_t n = 0; n < N; ++n) step[n] = strides[n][d];
      if (!sizes_.empty() && mergeable(step)) {
        sizes_.back() *= sizes[d];
      } else {
        sizes_.push_back(sizes[d]);
        strides_.push_back(step);
      }
    }
    if (sizes_.empty()) {
      sizes_.push_back(1);
      strides_.push_back({});
    }
    NXL_CHECK(sizes_.size() <= kMaxRank, kUnsupported, "a window of ", sizes_.size(),
              " dimensions that do not merge; the limit is ", kMaxRank);
  }
  explicit LoopNest(const std::array<at::Tensor, N>& tensors) : LoopNest(tensors[0].sizes(), all_strides(tensors)) {}

  int64_t count() const { return count_; }
  int64_t inner_size() const { return sizes_[0]; }
  const Strides& inner_strides() const { return strides_[0]; }

  // Calls inner(pointers, byte strides, n) for runs that cover the space once, from several threads when it is large.
  template <typename Inner>
  void run(const Pointers& bases, Inner&& inner, int64_t grain = kGrain) const {
    if (count_ == 0) return;
    if (count_ <= grain) {
      run_range(bases, 0, count_, inner);
    } else {
      at::parallel_for(0, count_, grain, [&](int64_t begin, int64_t end) { run_range(bases, begin, end, inner); });
    }
  }

  template <typename Inner>
  void run_serial(const Pointers& bases, Inner&& inner) const {
    if (count_ != 0) run_range(bases, 0, count_, inner);
  }

 private:
  static std::array<std::vector<int64_t>, N> all_strides(const std::array<at::Tensor, N>& tensors) {
    std::array<std::vector<int64_t>, N> strides;
    for (size_t n = 0; n < N; ++n) strides[n] = byte_strides(tensors[n]);
    return strides;
  }

  bool mergeable(const Strides& step) const {
    for (size_t n = 0; n < N; ++n) {
      if (step[n] != strides_.back()[n] * sizes_.back()) return false;
    }
    return true;
  }

  template <typename Inner>
  void run_range(const Pointers& bases, int64_t begin, int64_t end, Inner& inner) const {
    const size_t rank = sizes_.size();
    std::array<int64_t, kMaxRank> index{};
    Pointers pointers = bases;
    int64_t rest = begin;
    for (size_t d = 0; d < rank; ++d) {
      index[d] = rest % sizes_[d];
      rest /= sizes_[d];
      advance(pointers, d, index[d]);
    }
    for (int64_t done = begin; done < end;) {
      const int64_t n = std::min(sizes_[0] - index[0], end - done);
      inner(pointers, strides_[0], n);
      done += n;
      advance(pointers, 0, -index[0]);
      index[0] = 0;
      for (size_t d = 1; d < rank; ++d) {
        advance(pointers, d, 1);
        if (++index[d] < sizes_[d]) break;
        advance(pointers, d, -sizes_[d]);
        index[d] = 0;
      }
    }
  }

  void advance(Pointers& pointers, size_t d, int64_t steps) const {
    for (size_t n = 0; n < N; ++n) pointers[n] += strides_[d][n] * steps;
  }

  int64_t count_ = 1;
  c10::SmallVector<int64_t, 6> sizes_;
  c10::SmallVector<Strides, 6> strides_;
};

// A loop nest with the addresses of its operands.
template <size_t N>
class BoundLoop {
 public:
  explicit BoundLoop(const std::array<at::Tensor, N>& tensors) : nest_(tensors) {
    for (size_t n = 0; n < N; ++n) addresses_[n] = Address(tensors[n]);
  }
  template <typename Inner>
  void run(Inner&& inner, int64_t grain = kGrain) const {
    nest_.run(bases(), inner, grain);
  }
  typename LoopNest<N>::Pointers bases() const {
    typename LoopNest<N>::Pointers pointers;
    for (size_t n = 0; n < N; ++n) pointers[n] = addresses_[n].get();
    return pointers;
  }
  const LoopNest<N>& nest() const { return nest_; }

 private:
  LoopNest<N> nest_;
  std::array<Address, N> addresses_;
};

// Applies f to single elements: out[i] = f(in[i]...). Dense runs are a plain loop that the compiler vectorises.
template <typename Out, typename... In, typename F>
Kernel elementwise_loop(const at::Tensor& out, const std::array<at::Tensor, sizeof...(In)>& in, F f) {
  constexpr size_t N = sizeof...(In) + 1;
  std::array<at::Tensor, N> all;
  all[0] = out;
  std::copy(in.begin(), in.end(), all.begin() + 1);
  return [loop = BoundLoop<N>(all), f] {
    loop.run([&f](const auto& p, const auto& s, int64_t n) {
      [&]<size_t... I>(std::index_sequence<I...>) {
        if (s[0] == int64_t{sizeof(Out)} && ((s[I + 1] == int64_t{sizeof(In)}) && ...)) {
          Out* y = reinterpret_cast<Out*>(p[0]);
          const std::tuple<const In*...> x{reinterpret_cast<const In*>(p[I + 1])...};
          for (int64_t i = 0; i < n; ++i) y[i] = f(std::get<I>(x)[i]...);
        } else {
          for (int64_t i = 0; i < n; ++i) {
            *reinterpret_cast<Out*>(p[0] + i * s[0]) = f(*reinterpret_cast<const In*>(p[I + 1] + i * s[I + 1])...);
          }
        }
      }
      (std::index_sequence_for<In...>{});
    });
  };
}

// Copies n elements of `width` bytes; the sides do not overlap.
inline void copy_run(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t n, int64_t width) {
  if (to_stride == width && from_stride == width) {
    std::memcpy(to, from, static_cast<size_t>(n * width));
    return;
  }
  const auto each = [&](auto size) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, decltype(size)::value);
  };
  switch (width) {
    case 1:
      return each(std::integral_constant<size_t, 1>{});
    case 2:
      return each(std::integral_constant<size_t, 2>{});
    case 4:
      return each(std::integral_constant<size_t, 4>{});
    case 8:
      return each(std::integral_constant<size_t, 8>{});
    default:
      return each(std::integral_constant<size_t, 16>{});
  }
}

}  // namespace nxl::host
