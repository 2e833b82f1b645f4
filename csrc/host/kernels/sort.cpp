// SPDX-License-Identifier: Apache-2.0
// sort and top_k. Order: NaN is larger than every number, -0 equals +0.
#include <algorithm>
#include <numeric>

#include "host/kernels/combine.h"
#include "host/kernels/lines.h"
#include "host/kernels/registry.h"

namespace nxl::host {

namespace {

template <typename T>
bool less(T a, T b) {
  if (is_nan(a)) return false;
  return is_nan(b) || a < b;
}

template <typename T>
struct Keyed {
  T key;
  int64_t index;
};

// Keys of one line, with their positions.
template <typename T>
void read_keys(const char* p, int64_t stride, int64_t n, std::vector<Keyed<accumulator_t<T>>>& keys) {
  keys.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    keys[static_cast<size_t>(i)] = {static_cast<accumulator_t<T>>(*reinterpret_cast<const T*>(p + i * stride)), i};
  }
}

// Order of one line of x0: writes the sorted positions, one int64 per element.
template <typename T>
Kernel order_lines(const at::Tensor& x, const at::Tensor& order, int64_t dim, bool descending) {
  return [lines = Lines<2>({order, x}, dim), descending] {
    lines.run([&](const auto& p, const auto& s, int64_t n) {
      using K = Keyed<accumulator_t<T>>;
      thread_local std::vector<K> keys;
      read_keys<T>(p[1], s[1], n, keys);
      if (descending) {
        std::stable_sort(keys.begin(), keys.end(), [](const K& a, const K& b) { return less(b.key, a.key); });
      } else {
        std::stable_sort(keys.begin(), keys.end(), [](const K& a, const K& b) { return less(a.key, b.key); });
      }
      for (int64_t i = 0; i < n; ++i) {
        *reinterpret_cast<int64_t*>(p[0] + i * s[0]) = keys[static_cast<size_t>(i)].index;
      }
    });
  };
}

Kernel permute_lines(const at::Tensor& x, const at::Tensor& y, const at::Tensor& order, int64_t dim) {
  const auto width = y.element_size();
  return [lines = Lines<3>({y, x, order}, dim), width] {
    lines.run([width](const auto& p, const auto& s, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t from = *reinterpret_cast<const int64_t*>(p[2] + i * s[2]);
        std::memcpy(p[0] + i * s[0], p[1] + from * s[1], width);
      }
    });
  };
}

// Every sort is stable, so `stable` asks for nothing more.
Kernel prepare_sort(StepContext& step) {
  const size_t count = step.num_inputs();
  step.require(count >= 1 && step.num_outputs() == count, "takes as many outputs as inputs, at least one");
  const at::Tensor& keys = step.input(0);
  for (size_t i = 0; i < count; ++i) {
    step.expect_shape(step.input(i), keys.sizes(), nxl::detail::concat("input ", i));
    step.expect_shape(step.output(i), keys.sizes(), nxl::detail::concat("output ", i));
    step.expect_same_dtype(step.output(i), step.input(i), nxl::detail::concat("output ", i));
  }
  const int64_t dim = step.dimension("dim", keys.dim());
  const bool descending = step.boolean_or("descending", false);
  at::Tensor order = StepContext::scratch(keys.sizes(), at::kLong);
  std::vector<Kernel> kernels;
  visit_type(Concat<RealTypes, Float8Types>{}, keys.scalar_type(),
             [&]<typename T>() { kernels.push_back(order_lines<T>(keys, order, dim, descending)); });
  if (kernels.empty()) step.unsupported("complex numbers have no order");
  for (size_t i = 0; i < count; ++i) kernels.push_back(permute_lines(step.input(i), step.output(i), order, dim));
  return [kernels = std::move(kernels)] {
    for (const Kernel& kernel : kernels) kernel();
  };
}

template <typename T, typename Index>
Kernel top_lines(const at::Tensor& x, const at::Tensor& values, const at::Tensor& indices) {
  const int64_t dim = x.dim() - 1, k = values.size(dim);
  // Operand 0 sets the line's length, so x comes first.
  return [lines = Lines<3>({x, values, indices}, dim), k] {
    lines.run([k](const auto& p, const auto& s, int64_t n) {
      using K = Keyed<accumulator_t<T>>;
      thread_local std::vector<K> keys;
      read_keys<T>(p[0], s[0], n, keys);
      std::partial_sort(keys.begin(), keys.begin() + k, keys.end(), [](const K& a, const K& b) {
        return less(b.key, a.key) || (!less(a.key, b.key) && a.index < b.index);
      });
      for (int64_t i = 0; i < k; ++i) {
        const K& best = keys[static_cast<size_t>(i)];
        // The element itself, not its widened key: a NaN keeps its bits.
        std::memcpy(p[1] + i * s[1], p[0] + best.index * s[0], sizeof(T));
        *reinterpret_cast<Index*>(p[2] + i * s[2]) = static_cast<Index>(best.index);
      }
    });
  };
}

Kernel prepare_top_k(StepContext& step) {
  step.expect(1, 2);
  const at::Tensor &x = step.input(0), &values = step.output(0), &indices = step.output(1);
  step.require(x.dim() >= 1, "x is a scalar; the op needs a last dimension");
  const int64_t k = step.integer("k");
  step.require(k >= 0 && k <= x.size(-1), "attribute `k` is ", k, "; the last dimension has ", x.size(-1), " elements");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = k;
  step.expect_shape(values, shape, "output 0 (values)");
  step.expect_shape(indices, shape, "output 1 (indices)");
  step.expect_same_dtype(values, x, "output 0 (values)");
  if (values.numel() == 0) return [] {};
  Kernel kernel;
  visit_type(Concat<RealTypes, Float8Types>{}, x.scalar_type(), [&]<typename T>() {
    visit_type(Types<int32_t, int64_t>{}, indices.scalar_type(),
               [&]<typename Index>() { kernel = top_lines<T, Index>(x, values, indices); });
  });
  if (!kernel) step.unsupported("needs an ordered dtype and indices of i32 or i64");
  return kernel;
}

constexpr KernelEntry kKernels[] = {{"sort", prepare_sort}, {"top_k", prepare_top_k}};

}  // namespace

std::span<const KernelEntry> sort_kernels() { return kKernels; }

}  // namespace nxl::host
