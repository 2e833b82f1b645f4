// SPDX-License-Identifier: Apache-2.0
// convolution: every StableHLO form is brought to ATen's (oneDNN's) by views where possible, by one copy where not.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zero_native.h>

#include <algorithm>

#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"
#include "host/kernels/window_geometry.h"

namespace nxl::host {

namespace {

using Dims = std::vector<int64_t>;

// Dimensions in the order batch (output feature), feature (input feature), spatial...; a checked permutation.
at::Tensor arranged(const StepContext& step, const at::Tensor& tensor, const char* first, const char* second,
                    const char* spatial, std::string_view what) {
  Dims order{step.dimension(first, tensor.dim()), step.dimension(second, tensor.dim())};
  for (int64_t d : step.dimensions(spatial, tensor.dim())) order.push_back(d);
  Dims sorted = order;
  std::sort(sorted.begin(), sorted.end());
  step.require(order.size() == static_cast<size_t>(tensor.dim()) &&
                   std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
               "the dimension numbers of ", what, " are no permutation of its ", tensor.dim(), " dimensions");
  Dims sizes, strides;
  for (int64_t d : order) {
    sizes.push_back(tensor.size(d));
    strides.push_back(tensor.stride(d));
  }
  return rewindow(tensor, sizes, strides, tensor.storage_offset());
}

// ATen convolves over one to three dimensions; a convolution over none gets one of size 1.
at::Tensor with_spatial(const at::Tensor& tensor) {
  return tensor.dim() > 2 ? tensor
                          : rewindow(tensor, {tensor.size(0), tensor.size(1), 1},
                                     {tensor.stride(0), tensor.stride(1), 1}, tensor.storage_offset());
}

bool pads_by_itself(const std::vector<WindowDim>& dims) {
  return std::all_of(dims.begin(), dims.end(), [](const WindowDim& dim) {
    return dim.base_dilation == 1 && dim.low == dim.high && dim.low >= 0;
  });
}

// x with holes and padding written out. The zeros are written once; a run fills in x's elements (all but those that
// negative padding cuts off).
struct Padded {
  at::Tensor tensor;
  Kernel fill;
};

Padded written_out(const at::Tensor& x, std::vector<WindowDim>& dims, at::ScalarType dtype) {
  Dims sizes{x.size(0), x.size(1)};
  for (size_t d = 0; d < dims.size(); ++d) {
    sizes.push_back(std::max<int64_t>(
        0, dilated_size(x.size(static_cast<int64_t>(d) + 2), dims[d].base_dilation) + dims[d].low + dims[d].high));
  }
  Padded result{StepContext::scratch(sizes, dtype), {}};
  at::native::zero_(result.tensor);
  Dims from_sizes{x.size(0), x.size(1)}, from_strides{x.stride(0), x.stride(1)};
  Dims to_strides{result.tensor.stride(0), result.tensor.stride(1)};
  int64_t from_offset = x.storage_offset(), to_offset = 0;
  for (size_t d = 0; d < dims.size(); ++d) {
    WindowDim& dim = dims[d];
    const auto axis = static_cast<int64_t>(d) + 2;
    const int64_t dilation = dim.base_dilation;
    const int64_t first = dim.low >= 0 ? 0 : (-dim.low + dilation - 1) / dilation;
    const int64_t room = result.tensor.size(axis) - 1 - dim.low;
    const int64_t last = room < 0 ? -1 : std::min(room / dilation, x.size(axis) - 1);
    from_sizes.push_back(std::max<int64_t>(0, last - first + 1));
    from_strides.push_back(x.stride(axis));
    to_strides.push_back(result.tensor.stride(axis) * dilation);
    if (from_sizes.back() > 0) {
      from_offset += first * x.stride(axis);
      to_offset += (dim.low + first * dilation) * result.tensor.stride(axis);
    }
    dim.low = dim.high = 0;
    dim.base_dilation = 1;
  }
  if (std::find(from_sizes.begin(), from_sizes.end(), 0) != from_sizes.end()) {
    result.fill = [] {};
    return result;
  }
  result.fill = [to = rewindow(result.tensor, from_sizes, to_strides, to_offset),
                 from = rewindow(x, from_sizes, from_strides, from_offset)]() mutable { at::native::copy_(to, from); };
  return result;
}

// The groups of a batch_group_count become groups of features: [g * n, c, ...] is [n, g * c, ...].
Padded groups_as_features(const at::Tensor& x, int64_t groups) {
  Dims sizes{x.size(0) / groups, groups, x.size(1)},
      strides{x.stride(0), x.stride(0) * (x.size(0) / groups), x.stride(1)};
  Dims merged{x.size(0) / groups, groups * x.size(1)};
  for (int64_t d = 2; d < x.dim(); ++d) {
    sizes.push_back(x.size(d));
    strides.push_back(x.stride(d));
    merged.push_back(x.size(d));
  }
  at::Tensor dense = StepContext::scratch(sizes, x.scalar_type());
  Dims merged_strides{dense.stride(0), dense.stride(2)};
  for (int64_t d = 3; d < dense.dim(); ++d) merged_strides.push_back(dense.stride(d));
  return {
      rewindow(dense, merged, merged_strides, 0),
      [dense, from = rewindow(x, sizes, strides, x.storage_offset())]() mutable { at::native::copy_(dense, from); }};
}

// The kernel turned around in the spatial dimensions that window_reversal names.
Padded reversed_window(const at::Tensor& w, const std::vector<bool>& reversal) {
  at::Tensor dense = StepContext::scratch(w.sizes(), w.scalar_type());
  Dims strides = byte_strides(w);
  int64_t last = 0;
  for (size_t d = 0; d < reversal.size(); ++d) {
    if (!reversal[d]) continue;
    last += strides[d + 2] * (w.size(static_cast<int64_t>(d) + 2) - 1);
    strides[d + 2] = -strides[d + 2];
  }
  const auto width = static_cast<int64_t>(w.element_size());
  const std::array<Dims, 2> both{byte_strides(dense), strides};
  return {dense, [nest = LoopNest<2>(w.sizes(), both), to = Address(dense), from = Address(w), last, width] {
            nest.run({to.get(), from.get() + last},
                     [width](const auto& p, const auto& s, int64_t n) { copy_run(p[0], s[0], p[1], s[1], n, width); });
          }};
}

std::vector<bool> reversal_of(const StepContext& step, size_t rank) {
  std::vector<bool> reversal(rank, false);
  const Json* list = step.find("window_reversal");
  if (list == nullptr) return reversal;
  const Json::Array& flags = list->as_array("window_reversal");
  step.require(flags.size() == rank, "attribute `window_reversal` has ", flags.size(), " entries; the op needs ", rank);
  for (size_t d = 0; d < rank; ++d) {
    reversal[d] = flags[d].is_int() ? flags[d].as_int("window_reversal") != 0 : flags[d].as_bool("window_reversal");
  }
  return reversal;
}

// The type ATen convolves in: its own for f32, f64, bf16 and complex; f32 for the other floats; f64 for integers whose
// sums it holds exactly.
at::ScalarType compute_type(const StepContext& step, const at::Tensor& x, const at::Tensor& w, const at::Tensor& y) {
  const at::ScalarType type = x.scalar_type();
  step.expect_same_dtype(w, x, "input 1 (the kernel)");
  if (c10::isIntegralType(type, /*includeBool=*/true)) {
    if (x.element_size() > 2 || !c10::isIntegralType(y.scalar_type(), false)) {
      step.unsupported("integer convolution takes operands of at most 16 bits and an integer result");
    }
    return at::kDouble;
  }
  step.require(
      c10::isComplexType(type) == c10::isComplexType(y.scalar_type()) && !c10::isIntegralType(y.scalar_type(), true),
      "operands of ", c10::toString(type), " with a result of ", c10::toString(y.scalar_type()));
  if (type == y.scalar_type() && (type == at::kBFloat16 || type == at::kDouble || c10::isComplexType(type)))
    return type;
  return type == at::kDouble || y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct Geometry {
  Dims strides, padding, dilation, no_output_padding;
  int64_t groups = 1;
};

at::Tensor convolve_real(const at::Tensor& x, const at::Tensor& w, const Geometry& g) {
  return at::convolution(x, w, std::nullopt, g.strides, g.padding, g.dilation, /*transposed=*/false,
                         g.no_output_padding, g.groups);
}

// ATen convolves real numbers; a complex convolution is four of them.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& w, const Geometry& g) {
  if (!x.is_complex()) return convolve_real(x, w, g);
  const at::Tensor xr = at::real(x), xi = at::imag(x), wr = at::real(w), wi = at::imag(w);
  return at::complex(at::sub(convolve_real(xr, wr, g), convolve_real(xi, wi, g)),
                     at::add(convolve_real(xr, wi, g), convolve_real(xi, wr, g)));
}

Kernel prepare_convolution(StepContext& step) {
  step.expect(2, 1);
  at::Tensor x = arranged(step, step.input(0), "input_batch", "input_feature", "input_spatial", "the input");
  at::Tensor w =
      arranged(step, step.input(1), "kernel_output_feature", "kernel_input_feature", "kernel_spatial", "the kernel");
  at::Tensor y = arranged(step, step.output(0), "output_batch", "output_feature", "output_spatial", "the output");
  const int64_t rank = x.dim() - 2;
  step.require(w.dim() == x.dim() && y.dim() == x.dim(), "input, kernel and output differ in rank");
  if (rank > 3) step.unsupported(nxl::detail::concat("convolution over ", rank, " dimensions; the limit is 3"));
  std::vector<WindowDim> dims = window_dims(step, w.sizes().slice(2).vec(), static_cast<size_t>(rank), "window_strides",
                                            "lhs_dilation", "rhs_dilation");
  const int64_t feature_groups = step.integer_or("feature_group_count", 1),
                batch_groups = step.integer_or("batch_group_count", 1);
  step.require(feature_groups >= 1 && batch_groups >= 1 && (feature_groups == 1 || batch_groups == 1),
               "group counts are ", feature_groups, " and ", batch_groups, "; both must be >= 1 and one of them 1");
  step.require(x.size(0) % batch_groups == 0 && w.size(0) % batch_groups == 0 && w.size(0) % feature_groups == 0 &&
                   w.size(1) * feature_groups == x.size(1),
               "groups do not divide the features: input ", x.sizes(), ", kernel ", w.sizes(), ", groups ",
               feature_groups, " and ", batch_groups);
  Dims shape{x.size(0) / batch_groups, w.size(0)};
  for (int64_t d = 0; d < rank; ++d) shape.push_back(windowed_size(dims[static_cast<size_t>(d)], x.size(d + 2)));
  step.expect_shape(y, shape, "output 0");
  const at::ScalarType type = compute_type(step, x, w, y);
  if (y.numel() == 0) return [] {};
  if (x.numel() == 0 || w.numel() == 0) return [y]() mutable { at::native::zero_(y); };

  std::vector<Kernel> before;
  const auto take = [&before](at::Tensor& tensor, Padded made) {
    tensor = std::move(made.tensor);
    before.push_back(std::move(made.fill));
  };
  const auto brought = [&](at::Tensor& tensor) {
    if (tensor.scalar_type() == type) return;
    at::Tensor wide = StepContext::scratch(tensor.sizes(), type);
    before.push_back([to = wide, from = tensor]() mutable { at::native::copy_(to, from); });
    tensor = wide;
  };
  const std::vector<bool> reversal = reversal_of(step, static_cast<size_t>(rank));
  if (std::find(reversal.begin(), reversal.end(), true) != reversal.end()) take(w, reversed_window(w, reversal));
  brought(w);
  if (batch_groups > 1) take(x, groups_as_features(x, batch_groups));
  if (!pads_by_itself(dims)) take(x, written_out(x, dims, type));
  brought(x);
  x = with_spatial(x);
  w = with_spatial(w);
  y = with_spatial(y);
  if (dims.empty()) dims.emplace_back();
  Geometry geometry{{}, {}, {}, Dims(dims.size(), 0), feature_groups * batch_groups};
  for (const WindowDim& dim : dims) {
    geometry.strides.push_back(dim.stride);
    geometry.padding.push_back(dim.low);
    geometry.dilation.push_back(dim.window_dilation);
  }
  return [before = std::move(before), x, w, y, geometry = std::move(geometry)]() mutable {
    for (const Kernel& kernel : before) kernel();
    at::native::copy_(y, convolve(x, w, geometry));
  };
}

constexpr KernelEntry kKernels[] = {{"convolution", prepare_convolution}};

}  // namespace

std::span<const KernelEntry> convolution_kernels() { return kKernels; }

}  // namespace nxl::host
