// SPDX-License-Identifier: Apache-2.0
// Windows that slide over a padded, dilated dimension: the arithmetic that reduce_window and convolution share.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "host/kernels/step_context.h"

namespace nxl::host {

struct WindowDim {
  int64_t size = 1, stride = 1, base_dilation = 1, window_dilation = 1, low = 0, high = 0;
};

// Elements after `dilation - 1` holes between neighbours.
int64_t dilated_size(int64_t size, int64_t dilation);
// Positions of the window over `input_size` elements.
int64_t windowed_size(const WindowDim& dim, int64_t input_size);

// One entry per dimension from the step's attributes and `padding` [[lo,hi]..]; absent lists mean 1 (0 for padding).
// Numbers are bounded so that no product of them overflows.
std::vector<WindowDim> window_dims(const StepContext& step, const std::vector<int64_t>& sizes, size_t rank,
                                   std::string_view strides, std::string_view base_dilations,
                                   std::string_view window_dilations);

}  // namespace nxl::host
