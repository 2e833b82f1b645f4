// SPDX-License-Identifier: Apache-2.0
// The shape of a dot_general: a batch of matrix products y[m,n] = sum over k of lhs[m,k] * rhs[n,k], as strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "host/kernels/step_context.h"

namespace nxl::host {

// One batch dimension that could not be merged with its neighbours. Strides in elements.
struct BatchDim {
  int64_t size, lhs, rhs, out;
};

struct Contraction {
  int64_t m = 1, n = 1, k = 1;
  int64_t lhs_m = 0, lhs_k = 0, rhs_n = 0, rhs_k = 0, out_m = 0, out_n = 0;  // strides in elements
  std::vector<BatchDim> batch;
  int64_t batches() const;

  // The operands that the strides belong to. `lhs` and `rhs` are the step's, or dense copies where a group of
  // dimensions does not collapse to one stride; `out` likewise. `gather_inputs` fills the copies, `scatter_output`
  // writes a dense result to its place; both are null when there is nothing to do.
  at::Tensor lhs, rhs, out;
  Kernel gather_inputs, scatter_output;

  // Checks the step's dimension numbers against StableHLO's rules.
  static Contraction from(const StepContext& step);
};

}  // namespace nxl::host
