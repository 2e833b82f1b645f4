// SPDX-License-Identifier: Apache-2.0
// Sliding windows, checked.
#include "host/kernels/window_geometry.h"

namespace nxl::host {

namespace {

// Far above any real window, far below where products of two such numbers leave int64.
constexpr int64_t kLargest = int64_t{1} << 30;

std::vector<std::pair<int64_t, int64_t>> padding_of(const StepContext& step, size_t rank) {
  std::vector<std::pair<int64_t, int64_t>> padding(rank, {0, 0});
  const Json* list = step.find("padding");
  if (list == nullptr) return padding;
  const Json::Array& pairs = list->as_array("padding");
  step.require(pairs.size() == rank, "attribute `padding` has ", pairs.size(), " entries; the op needs ", rank);
  for (size_t d = 0; d < rank; ++d) {
    const std::vector<int64_t> pair = pairs[d].as_ints("padding");
    step.require(pair.size() == 2, "an entry of `padding` is not [low, high]");
    padding[d] = {pair[0], pair[1]};
  }
  return padding;
}

}  // namespace

int64_t dilated_size(int64_t size, int64_t dilation) { return size == 0 ? 0 : (size - 1) * dilation + 1; }

int64_t windowed_size(const WindowDim& dim, int64_t input_size) {
  const int64_t padded = dilated_size(input_size, dim.base_dilation) + dim.low + dim.high;
  const int64_t window = dilated_size(dim.size, dim.window_dilation);
  return padded <= 0 || window > padded ? 0 : (padded - window) / dim.stride + 1;
}

std::vector<WindowDim> window_dims(const StepContext& step, const std::vector<int64_t>& sizes, size_t rank,
                                   std::string_view strides, std::string_view base_dilations,
                                   std::string_view window_dilations) {
  step.require(sizes.size() == rank, "the window has ", sizes.size(), " dimensions; the op needs ", rank);
  const auto stride = step.integers_or(strides, rank, 1), base = step.integers_or(base_dilations, rank, 1),
             window = step.integers_or(window_dilations, rank, 1);
  const auto padding = padding_of(step, rank);
  std::vector<WindowDim> dims(rank);
  for (size_t d = 0; d < rank; ++d) {
    dims[d] = {sizes[d], stride[d], base[d], window[d], padding[d].first, padding[d].second};
    for (int64_t value : {dims[d].stride, dims[d].base_dilation, dims[d].window_dilation}) {
      step.require(value >= 1 && value <= kLargest, "dimension ", d, " has a stride or dilation of ", value,
                   "; it must be from 1 to ", kLargest);
    }
    step.require(dims[d].size >= 0 && dims[d].size <= kLargest, "dimension ", d, " has a window of ", dims[d].size,
                 "; the limit is ", kLargest);
    for (int64_t value : {dims[d].low, dims[d].high}) {
      step.require(value >= -kLargest && value <= kLargest, "dimension ", d, " has padding of ", value,
                   "; the limit is ", kLargest);
    }
  }
  return dims;
}

}  // namespace nxl::host
