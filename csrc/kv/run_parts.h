// SPDX-License-Identifier: Apache-2.0
// Shares of a transfer's runs: for the copy threads, and for providers that take so many runs at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/api.h"
#include "kv/plan.h"

namespace nxl::kv {

// At most `count` lists of about equal bytes that cover `runs` in order. A run is cut between its pieces, a long piece
// at a multiple of 4 KiB.
NXL_API std::vector<std::vector<Run>> split_runs(std::span<const Run> runs, uint64_t bytes, size_t count);

}  // namespace nxl::kv
