// SPDX-License-Identifier: Apache-2.0
// From dimension numbers to strides: groups of dimensions collapse where the layout allows, and are copied where not.
#include "host/kernels/contraction.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/copy_native.h>

#include <algorithm>

#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

using Dims = std::vector<int64_t>;

Dims free_dims(const at::Tensor& tensor, const Dims& batching, const Dims& contracting) {
  Dims free;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (std::find(batching.begin(), batching.end(), d) == batching.end() &&
        std::find(contracting.begin(), contracting.end(), d) == contracting.end()) {
      free.push_back(d);
    }
  }
  return free;
}

// One stride that walks `dims` in order as if they were one dimension, when there is one. `stride` is then set; a group
// with one element or none has stride 0.
bool collapse(const at::Tensor& tensor, const Dims& dims, int64_t& stride) {
  stride = 0;
  int64_t expected = -1;
  for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
    if (tensor.size(*d) == 1) continue;
    if (expected < 0) {
      stride = tensor.stride(*d);
    } else if (tensor.stride(*d) != expected) {
      return false;
    }
    expected = tensor.stride(*d) * tensor.size(*d);
  }
  return true;
}

int64_t product(const at::Tensor& tensor, const Dims& dims) {
  int64_t total = 1;
  for (int64_t d : dims) total *= tensor.size(d);
  return total;
}

Dims concatenated(const Dims& a, const Dims& b, const Dims& c) {
  Dims all = a;
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), c.begin(), c.end());
  return all;
}

// A dense tensor with the same shape whose memory follows `order`, seen through the original dimension order.
at::Tensor dense_like(const at::Tensor& tensor, const Dims& order) {
  Dims sizes, strides(order.size());
  for (int64_t d : order) sizes.push_back(tensor.size(d));
  at::Tensor memory = StepContext::scratch(sizes, tensor.scalar_type());
  for (size_t i = 0; i < order.size(); ++i) {
    strides[static_cast<size_t>(order[i])] = memory.stride(static_cast<int64_t>(i));
  }
  return rewindow(memory, tensor.sizes(), strides, 0);
}

std::vector<BatchDim> merge_batch(const at::Tensor& lhs, const Dims& lhs_dims, const at::Tensor& rhs,
                                  const Dims& rhs_dims, const at::Tensor& out) {
  std::vector<BatchDim> merged;
  for (size_t i = lhs_dims.size(); i-- > 0;) {
    const BatchDim dim{lhs.size(lhs_dims[i]), lhs.stride(lhs_dims[i]), rhs.stride(rhs_dims[i]),
                       out.stride(static_cast<int64_t>(i))};
    if (dim.size == 1) continue;
    if (!merged.empty()) {
      BatchDim& inner = merged.back();
      if (dim.lhs == inner.lhs * inner.size && dim.rhs == inner.rhs * inner.size && dim.out == inner.out * inner.size) {
        inner.size *= dim.size;
        continue;
      }
    }
    merged.push_back(dim);
  }
  return merged;
}

}  // namespace

int64_t Contraction::batches() const {
  int64_t total = 1;
  for (const BatchDim& dim : batch) total *= dim.size;
  return total;
}

Contraction Contraction::from(const StepContext& step) {
  Contraction result;
  result.lhs = step.input(0);
  result.rhs = step.input(1);
  result.out = step.output(0);
  at::Tensor &lhs = result.lhs, &rhs = result.rhs, &out = result.out;
  const Dims lhs_batch = step.dimensions("lhs_batching", lhs.dim()),
             rhs_batch = step.dimensions("rhs_batching", rhs.dim());
  const Dims lhs_k = step.dimensions("lhs_contracting", lhs.dim()),
             rhs_k = step.dimensions("rhs_contracting", rhs.dim());
  step.require(lhs_batch.size() == rhs_batch.size() && lhs_k.size() == rhs_k.size(),
               "lhs and rhs name different numbers of batching or contracting dimensions");
  const auto check_pairs = [&](const Dims& a, const Dims& b, const char* what) {
    for (size_t i = 0; i < a.size(); ++i) {
      step.require(lhs.size(a[i]) == rhs.size(b[i]), what, " pair ", i, " has sizes ", lhs.size(a[i]), " and ",
                   rhs.size(b[i]));
    }
  };
  check_pairs(lhs_batch, rhs_batch, "batching");
  check_pairs(lhs_k, rhs_k, "contracting");
  const Dims lhs_m = free_dims(lhs, lhs_batch, lhs_k), rhs_n = free_dims(rhs, rhs_batch, rhs_k);
  step.require(lhs_m.size() + lhs_batch.size() + lhs_k.size() == static_cast<size_t>(lhs.dim()) &&
                   rhs_n.size() + rhs_batch.size() + rhs_k.size() == static_cast<size_t>(rhs.dim()),
               "a dimension is both batching and contracting");
  Dims shape;
  for (int64_t d : lhs_batch) shape.push_back(lhs.size(d));
  for (int64_t d : lhs_m) shape.push_back(lhs.size(d));
  for (int64_t d : rhs_n) shape.push_back(rhs.size(d));
  step.expect_shape(out, shape, "output 0");
  Dims out_batch, out_m, out_n;
  for (size_t i = 0; i < shape.size(); ++i) {
    Dims& group = i < lhs_batch.size() ? out_batch : i < lhs_batch.size() + lhs_m.size() ? out_m : out_n;
    group.push_back(static_cast<int64_t>(i));
  }

  at::Tensor lhs_given = lhs, rhs_given = rhs, out_given = out;
  if (!collapse(lhs, lhs_m, result.lhs_m) || !collapse(lhs, lhs_k, result.lhs_k)) {
    lhs = dense_like(lhs, concatenated(lhs_batch, lhs_m, lhs_k));
  }
  if (!collapse(rhs, rhs_n, result.rhs_n) || !collapse(rhs, rhs_k, result.rhs_k)) {
    rhs = dense_like(rhs, concatenated(rhs_batch, rhs_n, rhs_k));
  }
  if (!collapse(out, out_m, result.out_m) || !collapse(out, out_n, result.out_n)) {
    out = dense_like(out, concatenated(out_batch, out_m, out_n));
  }
  collapse(lhs, lhs_m, result.lhs_m);
  collapse(lhs, lhs_k, result.lhs_k);
  collapse(rhs, rhs_n, result.rhs_n);
  collapse(rhs, rhs_k, result.rhs_k);
  collapse(out, out_m, result.out_m);
  collapse(out, out_n, result.out_n);
  result.m = product(lhs, lhs_m);
  result.n = product(rhs, rhs_n);
  result.k = product(lhs, lhs_k);
  result.batch = merge_batch(lhs, lhs_batch, rhs, rhs_batch, out);
  const bool lhs_copied = !lhs.is_same(lhs_given), rhs_copied = !rhs.is_same(rhs_given);
  if (lhs_copied || rhs_copied) {
    result.gather_inputs = [lhs, rhs, lhs_given, rhs_given, lhs_copied, rhs_copied]() mutable {
      if (lhs_copied) at::native::copy_(lhs, lhs_given);
      if (rhs_copied) at::native::copy_(rhs, rhs_given);
    };
  }
  if (!out.is_same(out_given)) {
    result.scatter_output = [out, out_given]() mutable { at::native::copy_(out_given, out); };
  }
  return result;
}

}  // namespace nxl::host
