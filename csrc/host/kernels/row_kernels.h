// SPDX-License-Identifier: Apache-2.0
// Loops over single rows of floats, one set per instruction set. No inline function of another header may be compiled
// with these instruction sets, or the linker could choose it for everybody: this header names plain types only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nxl::host {

// Rows given to these loops have room for a multiple of this many elements.
inline constexpr int64_t kRowPad = 16;

// The type a float is rounded to; it stays a float in memory.
enum class Rounding : uint8_t { kBFloat16, kFloat16, kNone };

// What a fused step computes with. Operands and results are f32; half types are rounded after each operation.
enum class RowUnary : uint8_t { kConvert, kNegate, kAbs, kExponential, kLogistic, kTanh, kErf, kSqrt, kRsqrt };
enum class RowBinary : uint8_t { kAdd, kSubtract, kMultiply, kDivide, kMaximum, kMinimum };
inline constexpr size_t kRowUnaries = 9, kRowBinaries = 6;
// Which operand of a binary operation is one number instead of a row.
enum class RowForm : uint8_t { kRows, kRightNumber, kLeftNumber };

// Element types in memory, and roundings, in this order.
inline constexpr size_t kRowTypes = 3;  // bf16, f16, f32

struct RowKernels {
  // y[i] = f(a[i], b[i]), i < n. Rows are padded and what lies behind n is overwritten; y may be a or b.
  using Unary = void (*)(float* y, const float* a, int64_t n);
  using Binary = void (*)(float* y, const float* a, const float* b, int64_t n);
  // n >= 0 elements; nothing behind them is touched. maximum passes NaN on; of no elements it is -infinity.
  using Reduce = float (*)(const float* x, int64_t n);
  using Widen = void (*)(float* to, const void* from, int64_t n);
  // Of elements that the type holds exactly.
  using Narrow = void (*)(void* to, const float* from, int64_t n);
  // Turns n > 0 scores into weights in place: exp(score * scale [+ bias] - the largest), then rounded. Where keep[i] is
  // 0 the score counts as -infinity. Returns the sum of the weights before rounding. With `keep` or `bias` (at most one
  // is not null) a row of nothing but -infinity gives zeros, and the sum 1; without, NaN. A NaN score makes the sum
  // NaN. `scores`, `keep` and `bias` are padded; what `keep` and `bias` hold behind n does not matter, scores become 0
  // there.
  using Softmax = float (*)(float* scores, int64_t n, float scale, const uint8_t* keep, const float* bias,
                            Rounding rounding);
  Softmax softmax;
  Unary unary[kRowUnaries][kRowTypes];        // by Rounding
  Binary binary[kRowBinaries][3][kRowTypes];  // by RowForm and Rounding
  Reduce sum, maximum;
  Widen widen[kRowTypes];
  Narrow narrow[kRowTypes];
  const char* name;
};

const RowKernels& row_kernels_avx512();
const RowKernels& row_kernels_avx2();
const RowKernels& row_kernels_portable();

// The kernels of this CPU.
const RowKernels& row_kernels();

}  // namespace nxl::host
