// SPDX-License-Identifier: Apache-2.0
// dot_general: a batch of matrix products on views, by the kernel that fits types and shape.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/ne_cpu_dispatch.h>
#include <ATen/ops/zero_native.h>

#include <algorithm>

#include "host/kernels/contraction.h"
#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"
#include "host/kernels/skinny_matmul.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

// One call of mm (batch size 1) or bmm on views made beforehand.
struct Product {
  at::Tensor lhs, rhs, out;
  bool batched;
  void run() {
    if (batched) {
      at::cpu::bmm_out(out, lhs, rhs);
    } else {
      at::cpu::mm_out(out, lhs, rhs);
    }
  }
};

// The products of a contraction: bmm over the largest batch dimension, one call per index of the others.
std::vector<Product> products_of(const Contraction& c, const at::Tensor& lhs, const at::Tensor& rhs,
                                 const at::Tensor& out) {
  std::vector<BatchDim> outer = c.batch;
  BatchDim inner{1, 0, 0, 0};
  if (!outer.empty()) {
    const auto largest = std::max_element(outer.begin(), outer.end(),
                                          [](const BatchDim& a, const BatchDim& b) { return a.size < b.size; });
    inner = *largest;
    outer.erase(largest);
  }
  std::vector<std::array<int64_t, 3>> offsets{{lhs.storage_offset(), rhs.storage_offset(), out.storage_offset()}};
  for (const BatchDim& dim : outer) {
    std::vector<std::array<int64_t, 3>> next;
    for (const auto& base : offsets) {
      for (int64_t i = 0; i < dim.size; ++i) {
        next.push_back({base[0] + i * dim.lhs, base[1] + i * dim.rhs, base[2] + i * dim.out});
      }
    }
    offsets = std::move(next);
  }
  const bool batched = inner.size > 1;
  const auto view = [&](const at::Tensor& tensor, int64_t batch_stride, int64_t rows, int64_t row_stride,
                        int64_t columns, int64_t column_stride, int64_t offset) {
    if (batched) {
      return rewindow(tensor, {inner.size, rows, columns}, {batch_stride, row_stride, column_stride}, offset);
    }
    return rewindow(tensor, {rows, columns}, {row_stride, column_stride}, offset);
  };
  std::vector<Product> products;
  products.reserve(offsets.size());
  for (const auto& offset : offsets) {
    products.push_back({view(lhs, inner.lhs, c.m, c.lhs_m, c.k, c.lhs_k, offset[0]),
                        view(rhs, inner.rhs, c.k, c.rhs_k, c.n, c.rhs_n, offset[1]),
                        view(out, inner.out, c.m, c.out_m, c.n, c.out_n, offset[2]), batched});
  }
  return products;
}

Kernel around(const Contraction& c, Kernel product) {
  if (!c.gather_inputs && !c.scatter_output) return product;
  return [before = c.gather_inputs, product = std::move(product), after = c.scatter_output] {
    if (before) before();
    product();
    if (after) after();
  };
}

Kernel aten_products(const Contraction& c, const at::Tensor& lhs, const at::Tensor& rhs, const at::Tensor& out) {
  std::vector<Product> products = products_of(c, lhs, rhs, out);
  if (products.size() == 1) return [product = products[0]]() mutable { product.run(); };
  return [products = std::move(products)]() mutable {
    for (Product& product : products) product.run();
  };
}

// The type both operands are brought to when ATen has no product for the types given.
at::ScalarType compute_type(const StepContext& step, at::ScalarType lhs, at::ScalarType rhs, at::ScalarType out) {
  const auto is_integer = [](at::ScalarType t) { return c10::isIntegralType(t, /*includeBool=*/true); };
  if (is_integer(out)) {
    if (!is_integer(lhs) || !is_integer(rhs)) step.unsupported("float operands with an integer result");
    return at::kLong;
  }
  if (c10::isComplexType(out)) return out;
  if (is_integer(lhs) || is_integer(rhs) || c10::isComplexType(lhs) || c10::isComplexType(rhs)) {
    step.unsupported(nxl::detail::concat("operands ", c10::toString(lhs), " and ", c10::toString(rhs),
                                         " with a result of ", c10::toString(out)));
  }
  return out == at::kDouble ? at::kDouble : at::kFloat;
}

// Same strides as the original where it is dense and without overlap, so that the contraction's strides hold.
at::Tensor strided_twin(const at::Tensor& tensor, at::ScalarType dtype) {
  int64_t extent = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 0) return StepContext::scratch({0}, dtype);
    extent += tensor.stride(d) * (tensor.size(d) - 1);
  }
  return rewindow(StepContext::scratch({extent}, dtype), tensor.sizes(), tensor.strides(), 0);
}

bool aten_multiplies(at::ScalarType dtype) {
  return c10::isComplexType(dtype) || is_float(dtype) || dtype == at::kInt || dtype == at::kLong;
}

Kernel prepare_dot_general(StepContext& step) {
  step.expect(2, 1);
  Contraction c = Contraction::from(step);
  if (c.out.numel() == 0) return [] {};
  if (c.k == 0) return [y = step.output(0)]() mutable { at::native::zero_(y); };
  const at::ScalarType lhs = c.lhs.scalar_type(), rhs = c.rhs.scalar_type(), out = c.out.scalar_type();
  if (Kernel skinny = prepare_skinny(c)) return around(c, std::move(skinny));
  const at::ScalarType twin = signed_twin(out);
  if (signed_twin(lhs) == twin && signed_twin(rhs) == twin && aten_multiplies(twin)) {
    return around(c, aten_products(c, reinterpret(c.lhs, twin), reinterpret(c.rhs, twin), reinterpret(c.out, twin)));
  }
  const at::ScalarType type = compute_type(step, lhs, rhs, out);
  const auto brought = [type](const at::Tensor& t) { return t.scalar_type() == type ? t : strided_twin(t, type); };
  at::Tensor wide_lhs = brought(c.lhs), wide_rhs = brought(c.rhs), wide_out = brought(c.out);
  return around(
      c, [product = aten_products(c, wide_lhs, wide_rhs, wide_out), given = c, wide_lhs, wide_rhs, wide_out]() mutable {
        if (!wide_lhs.is_same(given.lhs)) at::native::copy_(wide_lhs, given.lhs);
        if (!wide_rhs.is_same(given.rhs)) at::native::copy_(wide_rhs, given.rhs);
        product();
        if (!wide_out.is_same(given.out)) at::native::copy_(given.out, wide_out);
      });
}

constexpr KernelEntry kKernels[] = {{"dot_general", prepare_dot_general}};

}  // namespace

std::span<const KernelEntry> matmul_kernels() { return kKernels; }

}  // namespace nxl::host
