// SPDX-License-Identifier: Apache-2.0
// Inner loops of matrix products with few rows, one set per instruction set. A product of this kind reads its weights
// once, so it runs at the speed of memory if the loop keeps up: weights are widened to f32 in registers and multiplied
// there. (vdpbf16ps is not used: it flushes denormals.) No inline function of another header may be compiled with
// these instruction sets, or the linker could choose it for everybody: this header names plain types only.
#pragma once

#include <cstdint>

namespace nxl::host {

inline constexpr int kSkinnyRows = 4;  // most rows of x

enum class WeightType : uint8_t { kBFloat16, kFloat16, kFloat32 };

struct SkinnyKernels {
  // y[m * y_stride + j] = sum over i of x[m * x_stride + i] * w[j * w_stride + i], i < k, j < n, m < rows.
  // `w` points at elements of the weight type, which its strides count.
  using Dot = void (*)(int rows, const float* x, int64_t x_stride, const void* w, int64_t w_stride, int64_t k,
                       int64_t n, float* y, int64_t y_stride);
  // y[m * y_stride + j] = sum over i of x[m * x_stride + i] * w[i * w_stride + j].
  using Axpy = Dot;
  Dot dot[3];  // by WeightType
  Axpy axpy[3];
  const char* name;
};

const SkinnyKernels& skinny_kernels_avx512();
const SkinnyKernels& skinny_kernels_avx2();
const SkinnyKernels& skinny_kernels_portable();

}  // namespace nxl::host
