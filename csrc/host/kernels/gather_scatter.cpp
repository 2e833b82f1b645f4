// SPDX-License-Identifier: Apache-2.0
// gather and scatter in StableHLO's full generality: for every index vector, a strided window is copied or combined.
#include <algorithm>

#include "host/kernels/combine.h"
#include "host/kernels/index_value.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

// Dimension numbers of a gather; a scatter has the same under other names.
struct Dimensions {
  std::vector<int64_t> offset;            // dims of the result (updates) that walk inside a window
  std::vector<int64_t> collapsed;         // operand dims of window size 1 that the result lacks
  std::vector<int64_t> operand_batching;  // operand dims that advance together with ...
  std::vector<int64_t> indices_batching;  // ... these dims of the indices
  std::vector<int64_t> index_map;         // operand dim that each component of an index vector addresses
  int64_t index_vector = 0;               // dim of the indices that holds the vector; their rank when there is none
};

bool contains(const std::vector<int64_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Walks the index vectors: for each, where the operand's window and the result's window begin.
class WindowWalk {
 public:
  WindowWalk(const StepContext& step, const at::Tensor& operand, const at::Tensor& indices, const at::Tensor& result,
             const Dimensions& dims, const std::vector<int64_t>& window)
      : indices_(indices), index_dtype_(indices.scalar_type()) {
    step.expect_integral(indices, "the indices");
    const int64_t indices_rank = indices.dim(), operand_rank = operand.dim();
    step.require(dims.index_vector >= 0 && dims.index_vector <= indices_rank, "attribute `index_vector_dim` is ",
                 dims.index_vector, "; the indices have rank ", indices_rank);
    const int64_t vector_size = dims.index_vector == indices_rank ? 1 : indices.size(dims.index_vector);
    step.require(static_cast<int64_t>(dims.index_map.size()) == vector_size, "an index vector has ", vector_size,
                 " components; ", dims.index_map.size(), " operand dimensions are named for them");
    step.require(dims.operand_batching.size() == dims.indices_batching.size(),
                 "batching dimensions of operand and indices differ in number");
    step.require(static_cast<int64_t>(window.size()) == operand_rank, "the window has ", window.size(),
                 " dimensions, the operand ", operand_rank);
    for (int64_t d = 0; d < operand_rank; ++d) {
      const int64_t size = window[static_cast<size_t>(d)];
      step.require(size >= 0 && size <= operand.size(d), "the window has ", size, " elements in dimension ", d,
                   "; the operand has ", operand.size(d));
      if (contains(dims.collapsed, d) || contains(dims.operand_batching, d)) {
        step.require(size == 1, "dimension ", d, " is collapsed or batching and has window size ", size,
                     "; it must be 1");
      }
    }
    add_batch(step, operand, indices, result, dims);
    add_window(step, operand, result, dims, window);
    const std::vector<int64_t> operand_strides = byte_strides(operand);
    const int64_t component =
        dims.index_vector == indices_rank ? 0 : byte_strides(indices)[static_cast<size_t>(dims.index_vector)];
    for (size_t k = 0; k < dims.index_map.size(); ++k) {
      const auto d = static_cast<size_t>(dims.index_map[k]);
      axes_.push_back(
          {component * static_cast<int64_t>(k), operand.size(static_cast<int64_t>(d)) - window[d], operand_strides[d]});
    }
  }

  int64_t count() const { return batch_.count(); }
  const LoopNest<2>& window() const { return window_; }

  // Calls visit(operand window, result window) per index vector, starts clamped.
  template <typename Visit>
  void for_each_clamped(char* operand, char* result, Visit visit) const {
    batch_.run(
        {result, indices_.get(), operand},
        [&](auto p, const auto& s, int64_t n) {
          for (int64_t i = 0; i < n; ++i, p[0] += s[0], p[1] += s[1], p[2] += s[2]) {
            int64_t offset = 0;
            for (const Axis& axis : axes_) {
              offset +=
                  std::clamp<int64_t>(read_index(p[1] + axis.component, index_dtype_), 0, axis.room) * axis.stride;
            }
            visit(p[2] + offset, p[0]);
          }
        },
        std::max<int64_t>(1, kGrain / std::max<int64_t>(1, window_.count())));
  }

  // Calls visit(operand window, result window) one after the other, leaving out windows that do not fit.
  template <typename Visit>
  void for_each_inside(char* operand, char* result, Visit visit) const {
    batch_.run_serial({result, indices_.get(), operand}, [&](auto p, const auto& s, int64_t n) {
      for (int64_t i = 0; i < n; ++i, p[0] += s[0], p[1] += s[1], p[2] += s[2]) {
        int64_t offset = 0;
        bool inside = true;
        for (const Axis& axis : axes_) {
          const int64_t index = read_index(p[1] + axis.component, index_dtype_);
          inside &= index >= 0 && index <= axis.room;
          offset += inside ? index * axis.stride : 0;
        }
        if (inside) visit(p[2] + offset, p[0]);
      }
    });
  }

 private:
  struct Axis {
    int64_t component;  // bytes from the start of an index vector
    int64_t room;       // largest start
    int64_t stride;     // bytes in the operand
  };

  // The index vectors: result batch dims, paired in order with the dims of the indices without the vector's own. The
  // third operand of the nest is the operand, which batching dims advance.
  void add_batch(const StepContext& step, const at::Tensor& operand, const at::Tensor& indices,
                 const at::Tensor& result, const Dimensions& dims) {
    std::vector<int64_t> sizes;
    std::array<std::vector<int64_t>, 3> strides;
    const auto result_strides = byte_strides(result), index_strides = byte_strides(indices),
               operand_strides = byte_strides(operand);
    std::vector<int64_t> index_dims;
    for (int64_t d = 0; d < indices.dim(); ++d) {
      if (d != dims.index_vector) index_dims.push_back(d);
    }
    size_t next = 0;
    for (int64_t d = 0; d < result.dim(); ++d) {
      if (contains(dims.offset, d)) continue;
      step.require(next < index_dims.size(), "the result has more batch dimensions than the indices");
      const int64_t from = index_dims[next++];
      step.require(result.size(d) == indices.size(from), "batch dimension ", d, " has ", result.size(d),
                   " elements; the indices have ", indices.size(from));
      int64_t advance = 0;
      for (size_t b = 0; b < dims.indices_batching.size(); ++b) {
        if (dims.indices_batching[b] != from) continue;
        const int64_t o = dims.operand_batching[b];
        step.require(operand.size(o) == indices.size(from), "batching dimension ", o, " of the operand has ",
                     operand.size(o), " elements; the indices have ", indices.size(from));
        advance = operand_strides[static_cast<size_t>(o)];
      }
      sizes.push_back(result.size(d));
      strides[0].push_back(result_strides[static_cast<size_t>(d)]);
      strides[1].push_back(index_strides[static_cast<size_t>(from)]);
      strides[2].push_back(advance);
    }
    step.require(next == index_dims.size(), "the result has fewer batch dimensions than the indices");
    for (int64_t d : dims.indices_batching) {
      step.require(contains(index_dims, d), "the index vector's dimension cannot be a batching dimension");
    }
    for (int64_t d : dims.index_map) {
      step.require(!contains(dims.operand_batching, d), "dimension ", d, " is both indexed and batching");
    }
    batch_ = LoopNest<3>(sizes, strides);
  }

  void add_window(const StepContext& step, const at::Tensor& operand, const at::Tensor& result, const Dimensions& dims,
                  const std::vector<int64_t>& window) {
    std::vector<int64_t> sizes;
    std::array<std::vector<int64_t>, 2> strides;
    const auto result_strides = byte_strides(result), operand_strides = byte_strides(operand);
    step.require(std::is_sorted(dims.offset.begin(), dims.offset.end()), "window dimensions must be in order");
    size_t next = 0;
    for (int64_t d = 0; d < operand.dim(); ++d) {
      if (contains(dims.collapsed, d) || contains(dims.operand_batching, d)) continue;
      step.require(next < dims.offset.size(), "the result has fewer window dimensions than the operand");
      const int64_t r = dims.offset[next++];
      const int64_t size = window[static_cast<size_t>(d)];
      step.require(result.size(r) == size, "window dimension ", r, " has ", result.size(r),
                   " elements; the window has ", size);
      sizes.push_back(size);
      strides[0].push_back(result_strides[static_cast<size_t>(r)]);
      strides[1].push_back(operand_strides[static_cast<size_t>(d)]);
    }
    step.require(next == dims.offset.size(), "the result has more window dimensions than the operand");
    window_ = LoopNest<2>(sizes, strides);
  }

  Address indices_;
  at::ScalarType index_dtype_;
  std::vector<Axis> axes_;
  LoopNest<3> batch_;   // result, indices, operand
  LoopNest<2> window_;  // result, operand
};

Kernel prepare_gather(StepContext& step) {
  step.expect(2, 1);
  const at::Tensor &x = step.input(0), &indices = step.input(1), &y = step.output(0);
  step.expect_same_dtype(x, y, "input 0");
  Dimensions dims;
  dims.offset = step.dimensions("offset_dims", y.dim());
  dims.collapsed = step.dimensions("collapsed_slice_dims", x.dim());
  dims.operand_batching = step.dimensions("operand_batching_dims", x.dim());
  dims.indices_batching = step.dimensions("start_indices_batching_dims", indices.dim());
  dims.index_map = step.dimensions("start_index_map", x.dim());
  dims.index_vector = step.integer("index_vector_dim");
  const auto width = static_cast<int64_t>(y.element_size());
  WindowWalk walk(step, x, indices, y, dims, step.integers("slice_sizes"));
  return [walk, to = Address(y), from = Address(x), width] {
    if (walk.window().count() == 0) return;
    const LoopNest<2>& window = walk.window();
    if (window.inner_size() == window.count()) {
      const auto s = window.inner_strides();
      const int64_t n = window.count();
      walk.for_each_clamped(from.get(), to.get(), [&](const char* operand, char* result) {
        copy_run(result, s[0], operand, s[1], n, width);
      });
      return;
    }
    walk.for_each_clamped(from.get(), to.get(), [&](char* operand, char* result) {
      window.run_serial({result, operand}, [width](const auto& p, const auto& s, int64_t n) {
        copy_run(p[0], s[0], p[1], s[1], n, width);
      });
    });
  };
}

// The size of the window in each operand dimension, from the updates' shape.
std::vector<int64_t> scatter_window(const StepContext& step, const at::Tensor& target, const at::Tensor& updates,
                                    const Dimensions& dims) {
  std::vector<int64_t> window;
  size_t next = 0;
  for (int64_t d = 0; d < target.dim(); ++d) {
    if (contains(dims.collapsed, d) || contains(dims.operand_batching, d)) {
      window.push_back(1);
    } else {
      step.require(next < dims.offset.size(), "the updates have fewer window dimensions than the target");
      window.push_back(updates.size(dims.offset[next++]));
    }
  }
  for (int64_t d = 0; d < target.dim(); ++d) {
    step.require(window[static_cast<size_t>(d)] <= target.size(d), "the window has ", window[static_cast<size_t>(d)],
                 " elements in dimension ", d, "; the target has ", target.size(d));
  }
  return window;
}

Kernel prepare_scatter(StepContext& step) {
  step.expect(2, 1);
  const at::Tensor &indices = step.input(0), &updates = step.input(1), &target = step.output(0);
  step.expect_same_dtype(updates, target, "input 1 (updates)");
  Dimensions dims;
  dims.offset = step.dimensions("update_window_dims", updates.dim());
  dims.collapsed = step.dimensions("inserted_window_dims", target.dim());
  dims.operand_batching = step.dimensions("input_batching_dims", target.dim());
  dims.indices_batching = step.dimensions("scatter_indices_batching_dims", indices.dim());
  dims.index_map = step.dimensions("scatter_dims_to_operand_dims", target.dim());
  dims.index_vector = step.integer("index_vector_dim");
  if (target.numel() == 0 || updates.numel() == 0) return [] {};
  WindowWalk walk(step, target, indices, updates, dims, scatter_window(step, target, updates, dims));
  const Address to(target), from(updates);
  if (step.text("kind") == "update") {
    const auto width = static_cast<int64_t>(target.element_size());
    return [walk, to, from, width] {
      walk.for_each_inside(to.get(), from.get(), [&](char* operand, char* update) {
        walk.window().run({update, operand}, [width](const auto& p, const auto& s, int64_t n) {
          copy_run(p[1], s[1], p[0], s[0], n, width);
        });
      });
    };
  }
  Kernel kernel;
  visit_combine(step, combine_of(step), target.scalar_type(), [&]<typename T, typename Op>() {
    kernel = [walk, to, from] {
      walk.for_each_inside(to.get(), from.get(), [&](char* operand, char* update) {
        walk.window().run({update, operand}, [](const auto& p, const auto& s, int64_t n) {
          using W = accumulator_t<T>;
          for (int64_t i = 0; i < n; ++i) {
            T& element = *reinterpret_cast<T*>(p[1] + i * s[1]);
            const T value = *reinterpret_cast<const T*>(p[0] + i * s[0]);
            element = static_cast<T>(Op::template apply<W>(static_cast<W>(element), static_cast<W>(value)));
          }
        });
      });
    };
  });
  return kernel;
}

constexpr KernelEntry kKernels[] = {{"gather", prepare_gather}, {"scatter", prepare_scatter}};

}  // namespace

std::span<const KernelEntry> gather_scatter_kernels() { return kKernels; }

}  // namespace nxl::host
