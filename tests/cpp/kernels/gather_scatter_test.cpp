// SPDX-License-Identifier: Apache-2.0
// gather and scatter against StableHLO's definition, written out element by element, and against ATen's special cases.
#include <algorithm>

#include "program_builder.h"

namespace nxl::host::testing {
namespace {

using Dims = std::vector<int64_t>;

struct Case {
  Dims operand, indices, result;
  Dims offset, collapsed, operand_batching, indices_batching, index_map;
  int64_t index_vector;
  Dims window;
};

bool has(const Dims& list, int64_t value) { return std::find(list.begin(), list.end(), value) != list.end(); }

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      // Rows of an embedding table, with and without the vector's own dimension.
      {{10, 4}, {3, 1}, {3, 4}, {1}, {0}, {}, {}, {0}, 1, {1, 4}},
      {{10, 4}, {3}, {3, 4}, {1}, {0}, {}, {}, {0}, 1, {1, 4}},
      {{10, 4}, {2, 3}, {2, 3, 4}, {2}, {0}, {}, {}, {0}, 2, {1, 4}},
      // Columns.
      {{5, 6}, {4, 1}, {5, 4}, {0}, {1}, {}, {}, {1}, 1, {5, 1}},
      // Single elements by two coordinates, given in the other order.
      {{5, 6}, {7, 2}, {7}, {}, {0, 1}, {}, {}, {1, 0}, 1, {1, 1}},
      // Windows that keep their dimensions, the index vector in front.
      {{8, 9, 3}, {2, 4}, {4, 3, 2, 3}, {1, 2, 3}, {}, {}, {}, {0, 1}, 0, {3, 2, 3}},
      // Window dimensions on both sides of the batch dimension.
      {{8, 9, 3}, {4, 2}, {3, 4, 2}, {0, 2}, {1}, {}, {}, {0, 1}, 1, {3, 1, 2}},
      // Batching dimensions: take_along_dim.
      {{4, 7}, {4, 3, 1}, {4, 3}, {}, {1}, {0}, {0}, {1}, 2, {1, 1}},
      {{3, 4, 7}, {4, 3, 5, 1}, {4, 3, 5}, {}, {2}, {0, 1}, {1, 0}, {2}, 3, {1, 1, 1}},
      // Nothing to do.
      {{10, 4}, {0, 1}, {0, 4}, {1}, {0}, {}, {}, {0}, 1, {1, 4}},
      // One window, no batch.
      {{6, 5}, {2}, {2, 3}, {0, 1}, {}, {}, {}, {0, 1}, 0, {2, 3}},
  };
  return all;
}

std::string list(const char* name, const Dims& dims) {
  return nxl::detail::concat("\"", name, "\":[", c10::Join(",", dims), "],");
}

std::string gather_attributes(const Case& c) {
  return "{" + list("offset_dims", c.offset) + list("collapsed_slice_dims", c.collapsed) +
         list("operand_batching_dims", c.operand_batching) + list("start_indices_batching_dims", c.indices_batching) +
         list("start_index_map", c.index_map) + list("slice_sizes", c.window) +
         nxl::detail::concat("\"index_vector_dim\":", c.index_vector, "}");
}

std::string scatter_attributes(const Case& c, const std::string& kind) {
  return "{" + list("update_window_dims", c.offset) + list("inserted_window_dims", c.collapsed) +
         list("input_batching_dims", c.operand_batching) + list("scatter_indices_batching_dims", c.indices_batching) +
         list("scatter_dims_to_operand_dims", c.index_map) + "\"kind\":\"" + kind +
         nxl::detail::concat("\",\"index_vector_dim\":", c.index_vector, "}");
}

// StableHLO's text: for every result index, the operand index it reads (or adds to), and whether its window fits.
template <typename Visit>
void for_each(const Case& c, const at::Tensor& indices, bool clamp, Visit visit) {
  const auto rank = static_cast<int64_t>(c.operand.size());
  int64_t count = 1;
  for (int64_t size : c.result) count *= size;
  for (int64_t linear = 0; linear < count; ++linear) {
    Dims at(c.result.size());
    for (int64_t rest = linear, d = static_cast<int64_t>(at.size()) - 1; d >= 0; --d) {
      at[static_cast<size_t>(d)] = rest % c.result[static_cast<size_t>(d)];
      rest /= c.result[static_cast<size_t>(d)];
    }
    Dims batch, within;
    for (size_t d = 0; d < at.size(); ++d) (has(c.offset, static_cast<int64_t>(d)) ? within : batch).push_back(at[d]);
    Dims start(static_cast<size_t>(rank), 0);
    for (size_t k = 0; k < c.index_map.size(); ++k) {
      Dims where = batch;
      if (c.index_vector < static_cast<int64_t>(c.indices.size())) {
        where.insert(where.begin() + c.index_vector, static_cast<int64_t>(k));
      }
      at::Tensor component = indices;
      for (int64_t i : where) component = component.select(0, i);
      start[static_cast<size_t>(c.index_map[k])] = component.item<int64_t>();
    }
    for (size_t b = 0; b < c.operand_batching.size(); ++b) {
      const int64_t d = c.indices_batching[b];
      start[static_cast<size_t>(c.operand_batching[b])] = batch[static_cast<size_t>(d - (c.index_vector < d ? 1 : 0))];
    }
    bool inside = true;
    Dims operand(static_cast<size_t>(rank));
    size_t next = 0;
    for (int64_t d = 0; d < rank; ++d) {
      const auto u = static_cast<size_t>(d);
      const int64_t room = c.operand[u] - c.window[u];
      inside &= start[u] >= 0 && start[u] <= room;
      if (clamp) start[u] = std::clamp<int64_t>(start[u], 0, room);
      operand[u] = start[u] + (has(c.collapsed, d) || has(c.operand_batching, d) ? 0 : within[next++]);
    }
    visit(operand, at, inside);
  }
}

at::Tensor element(at::Tensor tensor, const Dims& at) {
  for (int64_t i : at) tensor = tensor.select(0, i);
  return tensor;
}

at::Tensor random_indices(const Case& c, int64_t low) { return at::randint(low, 12, c.indices, at::kLong); }

TEST(Gather, EveryFormAndIndexType) {
  for (size_t number = 0; number < cases().size(); ++number) {
    const Case& c = cases()[number];
    for (at::ScalarType dtype : {at::kFloat, at::kBool, at::kBFloat16}) {
      for (at::ScalarType index_dtype : {at::kLong, at::kInt, at::kUInt32, at::kUInt64, at::kChar}) {
        SCOPED_TRACE(nxl::detail::concat("case ", number, " ", c10::toString(dtype), " ", c10::toString(index_dtype)));
        const bool is_unsigned = index_dtype == at::kUInt32 || index_dtype == at::kUInt64;
        const at::Tensor x = sample(c.operand, dtype), indices = random_indices(c, is_unsigned ? 0 : -3);
        at::Tensor expected = at::empty(c.result, dtype);
        for_each(c, indices, /*clamp=*/true,
                 [&](const Dims& operand, const Dims& at, bool) { element(expected, at).copy_(element(x, operand)); });
        at::Tensor y = at::empty(c.result, dtype), odd = in_odd_layout(y);
        run_step("gather", {x, indices.to(index_dtype)}, {y}, gather_attributes(c));
        expect_close(y, expected);
        run_step("gather", {in_odd_layout(x), in_odd_layout(indices.to(index_dtype))}, {odd}, gather_attributes(c));
        expect_close(odd, expected);
      }
    }
  }
}

TEST(Gather, LargeEmbeddingOverTwoThreads) {
  const at::Tensor table = sample({1000, 64}, at::kBFloat16), rows = at::randint(0, 1000, {2000}, at::kLong);
  at::Tensor y = at::empty({2000, 64}, at::kBFloat16);
  run_step(
      "gather", {table, rows}, {y},
      R"({"offset_dims":[1],"collapsed_slice_dims":[0],"start_index_map":[0],"index_vector_dim":1,"slice_sizes":[1,64]})",
      2);
  expect_close(y, table.index_select(0, rows));
}

TEST(Scatter, EveryFormAndKind) {
  for (size_t number = 0; number < cases().size(); ++number) {
    const Case& c = cases()[number];
    for (const std::string kind : {"update", "add", "multiply", "maximum", "minimum"}) {
      for (at::ScalarType dtype : {at::kFloat, at::kInt, at::kUInt16}) {
        SCOPED_TRACE(nxl::detail::concat("case ", number, " ", kind, " ", c10::toString(dtype)));
        const at::Tensor indices = random_indices(c, -3);
        at::Tensor target = sample(c.operand, dtype), updates = sample(c.result, dtype);
        // Which of two updates of one place wins is not defined: give them one value.
        if (kind == "update") updates.fill_(7);
        at::Tensor expected = target.to(at::kDouble);
        for_each(c, indices, /*clamp=*/false, [&](const Dims& operand, const Dims& at, bool inside) {
          if (!inside) return;
          at::Tensor to = element(expected, operand);
          const at::Tensor value = element(updates, at).to(at::kDouble);
          if (kind == "update") to.copy_(value);
          if (kind == "add") to.add_(value);
          if (kind == "multiply") to.mul_(value);
          if (kind == "maximum") to.copy_(at::maximum(to, value));
          if (kind == "minimum") to.copy_(at::minimum(to, value));
        });
        if (kind == "multiply" && dtype != at::kFloat) continue;  // wraps; f64 is no oracle
        at::Tensor odd = in_odd_layout(target);
        const at::Tensor rounded = dtype == at::kFloat ? expected.to(dtype) : expected.to(at::kLong).to(dtype);
        run_in_place("scatter", {indices, updates}, target, scatter_attributes(c, kind));
        expect_close(target, rounded, 1e-4, 1e-4);
        run_in_place("scatter", {in_odd_layout(indices), in_odd_layout(updates)}, odd, scatter_attributes(c, kind));
        expect_close(odd, rounded, 1e-4, 1e-4);
      }
    }
  }
}

TEST(Scatter, RowsOfACache) {
  at::Tensor cache = sample({2, 50, 8}, at::kBFloat16), expected = cache.clone();
  const at::Tensor rows = sample({2, 3, 8}, at::kBFloat16), where = at::tensor({4, 9, 60}, at::kLong);
  expected.slice(1, 4, 5).copy_(rows.slice(1, 0, 1));
  expected.slice(1, 9, 10).copy_(rows.slice(1, 1, 2));
  run_in_place("scatter", {where, rows}, cache,
               R"({"kind":"update","update_window_dims":[0,2],"inserted_window_dims":[1],
                   "scatter_dims_to_operand_dims":[1],"index_vector_dim":1})");
  expect_close(cache, expected);
}

TEST(GatherScatter, RefuseWhatDoesNotFit) {
  const Case& c = cases()[0];
  const at::Tensor x = at::ones(c.operand), indices = at::zeros(c.indices, at::kLong), y = at::empty(c.result);
  const auto refused = [&](void (*change)(Case&), const char* part) {
    Case wrong = c;
    change(wrong);
    expect_refused("gather", {x, indices}, {y}, gather_attributes(wrong), ErrorKind::kInvalid, part);
  };
  refused([](Case& w) { w.window = {1, 5}; }, "5 elements in dimension 1");
  refused([](Case& w) { w.window = {2, 4}; }, "must be 1");
  refused([](Case& w) { w.window = {1}; }, "1 dimensions");
  refused([](Case& w) { w.window = {1, 3}; }, "the window has 3");
  refused([](Case& w) { w.index_map = {2}; }, "names dimension 2");
  refused([](Case& w) { w.index_map = {0, 1}; }, "components");
  refused([](Case& w) { w.index_vector = 3; }, "index_vector_dim");
  refused([](Case& w) { w.offset = {}; }, "batch dimensions");
  refused([](Case& w) { w.collapsed = {}; }, "window dimension 1 has 4 elements");
  refused([](Case& w) { w.operand_batching = {1}; }, "differ in number");
  expect_refused("gather", {x, at::zeros(c.indices)}, {y}, gather_attributes(c), ErrorKind::kInvalid, "integer type");
  expect_refused("gather", {x, at::zeros({4, 1}, at::kLong)}, {y}, gather_attributes(c), ErrorKind::kInvalid,
                 "batch dimension");
  expect_refused("scatter", {indices, at::ones({3, 5})}, {x}, scatter_attributes(c, "add"), ErrorKind::kInvalid,
                 "5 elements");
  expect_refused("scatter", {indices, at::ones({3, 4})}, {x}, scatter_attributes(c, "divide"), ErrorKind::kInvalid,
                 "`divide`");
}

}  // namespace
}  // namespace nxl::host::testing
