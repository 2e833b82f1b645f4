// SPDX-License-Identifier: Apache-2.0
// Op names and the functions that prepare them: one table per family, each in its family's file.
#pragma once

#include <span>
#include <string_view>

#include "host/kernels/step_context.h"

namespace nxl::host {

// Checks the step and returns what runs it. Throws Error(kInvalid) or Error(kUnsupported).
using Prepare = Kernel (*)(StepContext&);

struct KernelEntry {
  std::string_view name;
  Prepare prepare;
};

std::span<const KernelEntry> attention_kernels();
std::span<const KernelEntry> copy_kernels();
std::span<const KernelEntry> unary_kernels();
std::span<const KernelEntry> binary_kernels();
std::span<const KernelEntry> compare_select_kernels();
std::span<const KernelEntry> complex_kernels();
std::span<const KernelEntry> matmul_kernels();
std::span<const KernelEntry> convolution_kernels();
std::span<const KernelEntry> reduce_kernels();
std::span<const KernelEntry> window_kernels();
std::span<const KernelEntry> gather_scatter_kernels();
std::span<const KernelEntry> slice_kernels();
std::span<const KernelEntry> sort_kernels();
std::span<const KernelEntry> cumulative_kernels();
std::span<const KernelEntry> fft_kernels();
std::span<const KernelEntry> fused_kernels();
std::span<const KernelEntry> random_kernels();

}  // namespace nxl::host
