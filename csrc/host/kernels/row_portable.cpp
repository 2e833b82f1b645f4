// SPDX-License-Identifier: Apache-2.0
// Row loops in plain C++.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>

#include "host/kernels/row_kernels.h"

namespace nxl::host {

namespace {

// The loops are written over the vector, which comes first.
// clang-format off
#include "host/kernels/vector_portable.h"
#include "host/kernels/row_loops.h"
// clang-format on

constexpr RowKernels kKernels = make_row_kernels("portable");

}  // namespace

const RowKernels& row_kernels_portable() { return kKernels; }

}  // namespace nxl::host
