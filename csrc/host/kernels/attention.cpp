// SPDX-License-Identifier: Apache-2.0
// attention: scores, softmax and the weighted sum of values in one step, over the columns that the mask lets through.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"
#include "host/kernels/row_kernels.h"
#include "host/kernels/skinny_matmul.h"
#include "host/kernels/strided.h"
#include "host/kernels/team.h"

namespace nxl::host {

namespace {

// Rows of queries that share one reading of keys and values.
constexpr int64_t kTaskRows = 96;
// Scores a task may hold: its rows stay in the second-level cache.
constexpr int64_t kTaskScores = 131072;
// Columns of keys that are turned over at a time.
constexpr int64_t kPanel = 64;
// Multiplications a thread should have before a second one is worth waking.
constexpr int64_t kWorkGrain = 131072;

using Floats = Types<c10::BFloat16, c10::Half, float>;

struct Operand {
  Address at;
  std::vector<int64_t> strides;  // elements
  explicit Operand(const at::Tensor& tensor) : at(tensor), strides(tensor.strides().begin(), tensor.strides().end()) {}
};

// Columns [begin, end) of the keys.
struct Columns {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

int64_t padded(int64_t count) { return (count + kRowPad - 1) / kRowPad * kRowPad; }

// One thread's memory.
struct Scratch {
  std::vector<float> queries, scores, sums, panel, values, result, bias;
  std::vector<uint8_t> keep;
};

class Attention {
 public:
  Attention(const StepContext& step, const SkinnyKernels& products, const RowKernels& rows)
      : products_(products),
        row_kernels_(rows),
        query_(step.input(0)),
        key_(step.input(1)),
        value_(step.input(2)),
        scale_(step.input(3)),
        out_(step.output(0)),
        type_(step.output(0).scalar_type()),
        batch_(step.input(0).size(0)),
        groups_(step.input(0).size(1)),
        rows_(step.input(0).size(2)),
        width_(step.input(0).size(3)),
        columns_(step.input(1).size(1)),
        value_width_(step.input(2).size(2)) {
    if (step.num_inputs() == 5) {
      mask_ = std::make_unique<Operand>(step.input(4));
      mask_is_flags_ = step.input(4).scalar_type() == at::kBool;
    }
    const int64_t most = std::clamp<int64_t>(kTaskScores / padded(columns_), 1, kTaskRows);
    task_rows_ = std::clamp<int64_t>(most / groups_, 1, rows_);
    tasks_per_batch_ = (rows_ + task_rows_ - 1) / task_rows_;
  }

  void run() {
    const int64_t total = batch_ * tasks_per_batch_;
    const int64_t work = batch_ * groups_ * rows_ * columns_ * (width_ + value_width_);
    const int64_t threads = std::max<int64_t>(1, std::min({int64_t{at::get_num_threads()}, total, work / kWorkGrain}));
    while (static_cast<int64_t>(scratch_.size()) < threads) scratch_.push_back(make_scratch());
    std::atomic<int64_t> next{0};
    // One piece a thread, for the scratch; the tasks, of unequal length under a causal mask, are taken one by one.
    const auto piece = [&](int64_t begin, int64_t end) noexcept {
      for (int64_t slot = begin; slot < end; ++slot) {
        for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < total;) {
          visit_type(Floats{}, type_, [&]<typename T>() { run_task<T>(task, scratch_[static_cast<size_t>(slot)]); });
        }
      }
    };
    Team::of_this_thread().share(static_cast<int>(threads), threads, 1, piece);
  }

 private:
  Scratch make_scratch() const {
    const int64_t rows = groups_ * task_rows_, wide = padded(columns_);
    const auto floats = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count)); };
    return {floats(rows * width_),
            floats(rows * wide),
            floats(rows),
            floats(width_ * kPanel),
            floats(columns_ * value_width_),
            floats(rows * padded(value_width_)),
            floats(wide),
            std::vector<uint8_t>(static_cast<size_t>(wide))};
  }

  template <typename T>
  static const T* address(const Operand& operand, int64_t a, int64_t b, int64_t c = 0) {
    const auto& s = operand.strides;
    return reinterpret_cast<const T*>(operand.at.get()) + a * s[0] + b * s[1] + c * s[2];
  }

  // The columns that some row of the task may see. An additive mask hides nothing: what it adds may be finite.
  Columns visible(int64_t batch, int64_t first, int64_t count) const {
    if (mask_ == nullptr || !mask_is_flags_) return {0, columns_};
    const auto& s = mask_->strides;
    const int64_t groups = s[1] == 0 ? 1 : groups_, rows = s[2] == 0 ? 1 : count;
    Columns seen{columns_, 0};
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* flags = address<uint8_t>(*mask_, batch, g, first + r);
        int64_t end = columns_;
        while (end > seen.end && flags[(end - 1) * s[3]] == 0) --end;
        seen.end = end;
        int64_t begin = 0;
        while (begin < seen.begin && flags[begin * s[3]] == 0) ++begin;
        seen.begin = begin;
      }
    }
    seen.begin = std::min(seen.begin, seen.end);
    return seen;
  }

  template <typename T>
  void run_task(int64_t task, Scratch& scratch) const {
    const int64_t batch = task / tasks_per_batch_, first = task % tasks_per_batch_ * task_rows_;
    const int64_t count = std::min(task_rows_, rows_ - first);
    const Columns columns = visible(batch, first, count);
    if (columns.count() == 0) {
      std::fill(scratch.result.begin(), scratch.result.end(), 0.0f);
      write<T>(batch, first, count, nullptr, scratch.result.data());
      return;
    }
    const int64_t rows = groups_ * count, stride = padded(columns.count());
    widen_queries<T>(batch, first, count, scratch.queries.data());
    score<T>(batch, columns, rows, scratch, stride);
    weigh(batch, first, count, columns, scratch, stride);
    sum_values<T>(batch, columns, rows, scratch, stride);
    write<T>(batch, first, count, scratch.sums.data(), scratch.result.data());
  }

  template <typename T>
  void widen_queries(int64_t batch, int64_t first, int64_t count, float* to) const {
    for (int64_t g = 0; g < groups_; ++g) {
      for (int64_t r = 0; r < count; ++r, to += width_) {
        const T* from = address<T>(query_, batch, g, first + r);
        widen(from, query_.strides[3], width_, to);
      }
    }
  }

  // scores[row][column] = query . key, in f32.
  template <typename T>
  void score(int64_t batch, const Columns& columns, int64_t rows, Scratch& scratch, int64_t stride) const {
    const int64_t column_step = key_.strides[1], step = key_.strides[2];
    const T* keys = address<T>(key_, batch, columns.begin);
    float* scores = scratch.scores.data();
    if (rows <= kSkinnyRows && (step == 1 || width_ == 1)) {
      products_.dot[kind<T>()](static_cast<int>(rows), scratch.queries.data(), width_, keys, column_step, width_,
                               columns.count(), scores, stride);
      return;
    }
    float* panel = scratch.panel.data();
    for (int64_t at = 0; at < columns.count(); at += kPanel) {
      const int64_t n = std::min(kPanel, columns.count() - at);
      for (int64_t j = 0; j < n; ++j) {
        const T* key = keys + (at + j) * column_step;
        for (int64_t i = 0; i < width_; ++i) panel[i * kPanel + j] = static_cast<float>(key[i * step]);
      }
      for (int64_t row = 0; row < rows; row += kSkinnyRows) {
        const auto some = static_cast<int>(std::min<int64_t>(kSkinnyRows, rows - row));
        products_.axpy[kind<float>()](some, scratch.queries.data() + row * width_, width_, panel, kPanel, width_, n,
                                      scores + row * stride + at, stride);
      }
    }
  }

  // Scores become weights, sums[row] what they add up to.
  void weigh(int64_t batch, int64_t first, int64_t count, const Columns& columns, Scratch& scratch,
             int64_t stride) const {
    const float scale = *reinterpret_cast<const float*>(scale_.at.get());
    const Rounding rounding = type_ == at::kBFloat16 ? Rounding::kBFloat16
                              : type_ == at::kHalf   ? Rounding::kFloat16
                                                     : Rounding::kNone;
    float* scores = scratch.scores.data();
    float* sums = scratch.sums.data();
    for (int64_t g = 0; g < groups_; ++g) {
      for (int64_t r = 0; r < count; ++r, scores += stride) {
        const uint8_t* keep = nullptr;
        const float* bias = nullptr;
        if (mask_ != nullptr && mask_is_flags_) {
          gather(address<uint8_t>(*mask_, batch, g, first + r), columns, scratch.keep.data());
          keep = scratch.keep.data();
        } else if (mask_ != nullptr) {
          gather(address<float>(*mask_, batch, g, first + r), columns, scratch.bias.data());
          bias = scratch.bias.data();
        }
        *sums++ = row_kernels_.softmax(scores, columns.count(), scale, keep, bias, rounding);
      }
    }
  }

  template <typename M>
  void gather(const M* mask, const Columns& columns, M* to) const {
    const int64_t step = mask_->strides[3];
    for (int64_t i = 0; i < columns.count(); ++i) to[i] = mask[(columns.begin + i) * step];
  }

  // result[row] = sum over columns of weight * value, in f32.
  template <typename T>
  void sum_values(int64_t batch, const Columns& columns, int64_t rows, Scratch& scratch, int64_t stride) const {
    const int64_t row_step = value_.strides[1], step = value_.strides[2];
    const void* values = address<T>(value_, batch, columns.begin);
    size_t type = kind<T>();
    int64_t values_stride = row_step;
    if (rows > 2 * kSkinnyRows || (step != 1 && value_width_ != 1)) {
      float* wide = scratch.values.data();
      for (int64_t j = 0; j < columns.count(); ++j) {
        const T* from = static_cast<const T*>(values) + j * row_step;
        widen(from, step, value_width_, wide + j * value_width_);
      }
      values = wide;
      type = kind<float>();
      values_stride = value_width_;
    }
    for (int64_t row = 0; row < rows; row += kSkinnyRows) {
      const auto some = static_cast<int>(std::min<int64_t>(kSkinnyRows, rows - row));
      products_.axpy[type](some, scratch.scores.data() + row * stride, stride, values, values_stride, columns.count(),
                           value_width_, scratch.result.data() + row * padded(value_width_), padded(value_width_));
    }
  }

  // Divides each row by its sum, where sums are given, rounds and writes.
  template <typename T>
  void write(int64_t batch, int64_t first, int64_t count, const float* sums, float* from) const {
    constexpr size_t type = kind<T>();
    const auto divide =
        row_kernels_.binary[static_cast<size_t>(RowBinary::kDivide)][static_cast<size_t>(RowForm::kRightNumber)][type];
    const int64_t step = out_.strides[3];
    for (int64_t g = 0; g < groups_; ++g) {
      for (int64_t r = 0; r < count; ++r, from += padded(value_width_)) {
        T* to = const_cast<T*>(address<T>(out_, batch, g, first + r));
        if (sums != nullptr) divide(from, from, sums++, value_width_);
        if (step == 1) {
          row_kernels_.narrow[type](to, from, value_width_);
          continue;
        }
        for (int64_t i = 0; i < value_width_; ++i) to[i * step] = static_cast<T>(from[i]);
      }
    }
  }

  template <typename T>
  void widen(const T* from, int64_t step, int64_t count, float* to) const {
    if (step == 1) return row_kernels_.widen[kind<T>()](to, from, count);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i * step]);
  }

  template <typename T>
  static constexpr size_t kind() {
    if constexpr (std::is_same_v<T, c10::BFloat16>) return static_cast<size_t>(WeightType::kBFloat16);
    if constexpr (std::is_same_v<T, c10::Half>) return static_cast<size_t>(WeightType::kFloat16);
    return static_cast<size_t>(WeightType::kFloat32);
  }

  const SkinnyKernels& products_;
  const RowKernels& row_kernels_;
  Operand query_, key_, value_, scale_, out_;
  std::unique_ptr<Operand> mask_;
  bool mask_is_flags_ = false;
  at::ScalarType type_;
  int64_t batch_, groups_, rows_, width_, columns_, value_width_;
  int64_t task_rows_ = 1, tasks_per_batch_ = 1;
  std::vector<Scratch> scratch_;
};

void check_operands(const StepContext& step) {
  step.require(step.num_inputs() == 4 || step.num_inputs() == 5,
               "takes query, key, value, scale and maybe a mask; the ", "step has ", step.num_inputs(), " inputs");
  step.expect(step.num_inputs(), 1);
  const at::Tensor &query = step.input(0), &key = step.input(1), &value = step.input(2), &out = step.output(0);
  step.require(query.dim() == 4 && key.dim() == 3 && value.dim() == 3, "query, key and value have ranks ", query.dim(),
               ", ", key.dim(), " and ", value.dim(), "; the op needs 4, 3 and 3");
  step.expect_shape(key, {query.size(0), key.size(1), query.size(3)}, "input 1 (key)");
  step.expect_shape(value, {query.size(0), key.size(1), value.size(2)}, "input 2 (value)");
  step.expect_shape(out, {query.size(0), query.size(1), query.size(2), value.size(2)}, "output 0");
  step.expect_scalar(step.input(3), "input 3 (scale)");
  step.expect_dtype(step.input(3), at::kFloat, "input 3 (scale)");
  step.expect_same_dtype(query, out, "input 0 (query)");
  step.expect_same_dtype(key, out, "input 1 (key)");
  step.expect_same_dtype(value, out, "input 2 (value)");
  if (out.scalar_type() != at::kBFloat16 && out.scalar_type() != at::kHalf && out.scalar_type() != at::kFloat) {
    step.unsupported(nxl::detail::concat("not defined for dtype ", c10::toString(out.scalar_type())));
  }
  step.require(key.size(1) > 0 || out.numel() == 0, "there is no key to attend to");
  if (step.num_inputs() == 4) return;
  const at::Tensor& mask = step.input(4);
  step.expect_shape(mask, {query.size(0), query.size(1), query.size(2), key.size(1)}, "input 4 (mask)");
  step.require(mask.scalar_type() == at::kBool || mask.scalar_type() == at::kFloat, "input 4 (mask) has dtype ",
               c10::toString(mask.scalar_type()), "; the op needs bool or f32");
}

Kernel prepare_attention(StepContext& step) {
  check_operands(step);
  if (step.output(0).numel() == 0) return [] {};
  auto attention = std::make_shared<Attention>(step, skinny_kernels(), row_kernels());
  return [attention] { attention->run(); };
}

constexpr KernelEntry kKernels[] = {{"attention", prepare_attention}};

}  // namespace

const RowKernels& row_kernels() {
  static const RowKernels& chosen = []() -> const RowKernels& {
    const std::string_view set = skinny_kernels().name;
#if defined(__x86_64__)
    if (set == "avx512") return row_kernels_avx512();
    if (set == "avx2") return row_kernels_avx2();
#endif
    return row_kernels_portable();
  }();
  return chosen;
}

std::span<const KernelEntry> attention_kernels() { return kKernels; }

}  // namespace nxl::host
