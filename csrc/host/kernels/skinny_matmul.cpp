// SPDX-License-Identifier: Apache-2.0
// Chooses the loop for a skinny product and shares its weights out over threads.
#include "host/kernels/skinny_matmul.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "host/kernels/dtype_map.h"
#include "host/kernels/strided.h"
#include "host/kernels/team.h"

namespace nxl::host {

namespace {

// Weight elements a thread should have before a second one is worth waking.
constexpr int64_t kWeightGrain = 65536;
// Columns of y that one task computes; their f32 sums stay in the first-level cache.
constexpr int64_t kColumns = 256;

std::optional<WeightType> weight_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return WeightType::kBFloat16;
    case at::kHalf:
      return WeightType::kFloat16;
    case at::kFloat:
      return WeightType::kFloat32;
    default:
      return std::nullopt;
  }
}

// y[m,n] = sum over k of x[m,k] * w[n,k], x being the side with few rows. Strides in elements.
struct Skinny {
  int rows = 0;
  int64_t n = 0, k = 0, x_m = 0, x_k = 0, y_m = 0, y_n = 0;
  int64_t w_outer = 0;  // from one row of weights (dot) or one k (axpy) to the next
  bool dot = true;
  Address x, w, y;
  at::ScalarType x_type, w_type, y_type;
  struct Offsets {
    int64_t x, w, y;  // elements
  };
  std::vector<Offsets> batches;
  SkinnyKernels::Dot kernel = nullptr;
  std::shared_ptr<std::vector<float>> wide_x;  // rows * k floats per batch
};

std::vector<Skinny::Offsets> offsets_of(const std::vector<BatchDim>& dims, bool swapped) {
  std::vector<Skinny::Offsets> all{{0, 0, 0}};
  for (const BatchDim& dim : dims) {
    std::vector<Skinny::Offsets> next;
    for (int64_t i = 0; i < dim.size; ++i) {
      for (const auto& base : all) {
        const int64_t x = swapped ? dim.rhs : dim.lhs, w = swapped ? dim.lhs : dim.rhs;
        next.push_back({base.x + i * x, base.w + i * w, base.y + i * dim.out});
      }
    }
    all = std::move(next);
  }
  return all;
}

template <typename T>
void widen_rows(const Skinny& s, const T* x, float* wide) {
  for (int m = 0; m < s.rows; ++m) {
    for (int64_t i = 0; i < s.k; ++i) wide[m * s.k + i] = static_cast<float>(x[m * s.x_m + i * s.x_k]);
  }
}

template <typename T>
void narrow_columns(const Skinny& s, const float* sums, int64_t count, T* y) {
  for (int m = 0; m < s.rows; ++m) {
    for (int64_t j = 0; j < count; ++j) y[m * s.y_m + j * s.y_n] = static_cast<T>(sums[m * kColumns + j]);
  }
}

void run(const Skinny& s) {
  using Floats = Types<c10::BFloat16, c10::Half, float>;
  const auto batches = static_cast<int64_t>(s.batches.size());
  float* wide = s.wide_x->data();
  const int64_t wide_size = s.rows * s.k;
  visit_type(Floats{}, s.x_type, [&]<typename T>() {
    const T* x = reinterpret_cast<const T*>(s.x.get());
    for (int64_t b = 0; b < batches; ++b)
      widen_rows<T>(s, x + s.batches[static_cast<size_t>(b)].x, wide + b * wide_size);
  });
  const auto w_width = static_cast<int64_t>(c10::elementSize(s.w_type));
  const auto y_width = static_cast<int64_t>(c10::elementSize(s.y_type));
  const char* w = s.w.get();
  char* y = s.y.get();
  // A task is one block of columns; blocks are small enough that both threads have work in narrow products too.
  // The axpy form reads a piece of every weight row, so its pieces are at least two cache lines.
  const int64_t block = std::clamp<int64_t>((s.n + 15) / 16 * 4, s.dot ? 16 : 64, kColumns);
  const int64_t blocks = (s.n + block - 1) / block;
  const auto tasks = [&](int64_t begin, int64_t end) noexcept {
    float sums[kSkinnyRows * kColumns];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / blocks, first = task % blocks * block, count = std::min(block, s.n - first);
      const Skinny::Offsets& at = s.batches[static_cast<size_t>(b)];
      const char* weights = w + (at.w + first * (s.dot ? s.w_outer : 1)) * w_width;
      s.kernel(s.rows, wide + b * wide_size, s.k, weights, s.w_outer, s.k, count, sums, kColumns);
      char* to = y + (at.y + first * s.y_n) * y_width;
      visit_type(Floats{}, s.y_type,
                 [&]<typename T>() { narrow_columns<T>(s, sums, count, reinterpret_cast<T*>(to)); });
    }
  };
  const int64_t total = batches * blocks;
  const int64_t grain = std::max<int64_t>(1, kWeightGrain / std::max<int64_t>(1, s.k * block));
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), (total + grain - 1) / grain);
  Team::of_this_thread().share(static_cast<int>(threads), total, std::max<int64_t>(1, grain / 4), tasks);
}

Kernel prepare_side(const Contraction& c, const SkinnyKernels& kernels, bool swapped) {
  const at::Tensor &x = swapped ? c.rhs : c.lhs, &w = swapped ? c.lhs : c.rhs;
  const int64_t rows = swapped ? c.n : c.m;
  const auto type = weight_type(w.scalar_type());
  if (rows > kSkinnyRows || !type || !weight_type(x.scalar_type()) || !weight_type(c.out.scalar_type())) return {};
  Skinny s;
  s.rows = static_cast<int>(rows);
  s.n = swapped ? c.m : c.n;
  s.k = c.k;
  s.x_m = swapped ? c.rhs_n : c.lhs_m;
  s.x_k = swapped ? c.rhs_k : c.lhs_k;
  s.y_m = swapped ? c.out_n : c.out_m;
  s.y_n = swapped ? c.out_m : c.out_n;
  const int64_t w_n = swapped ? c.lhs_m : c.rhs_n, w_k = swapped ? c.lhs_k : c.rhs_k;
  if (w_k == 1 || s.k == 1) {
    s.dot = true;
    s.w_outer = w_n;
  } else if (w_n == 1 || s.n == 1) {
    s.dot = false;
    s.w_outer = w_k;
  } else {
    return {};
  }
  s.kernel = (s.dot ? kernels.dot : kernels.axpy)[static_cast<size_t>(*type)];
  s.x = Address(x);
  s.w = Address(w);
  s.y = Address(c.out);
  s.x_type = x.scalar_type();
  s.w_type = w.scalar_type();
  s.y_type = c.out.scalar_type();
  s.batches = offsets_of(c.batch, swapped);
  s.wide_x = std::make_shared<std::vector<float>>(s.batches.size() * static_cast<size_t>(s.rows * s.k));
  return [s = std::move(s)] { run(s); };
}

}  // namespace

const SkinnyKernels& skinny_kernels() {
  static const SkinnyKernels& chosen = []() -> const SkinnyKernels& {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma")) {
      return skinny_kernels_avx512();
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
      return skinny_kernels_avx2();
    }
#endif
    return skinny_kernels_portable();
  }();
  return chosen;
}

Kernel prepare_skinny(const Contraction& contraction, const SkinnyKernels& kernels) {
  if (Kernel kernel = prepare_side(contraction, kernels, /*swapped=*/false)) return kernel;
  return prepare_side(contraction, kernels, /*swapped=*/true);
}

}  // namespace nxl::host
