// SPDX-License-Identifier: Apache-2.0
// Walks strided runs in bounded steps: what every channel needs to look at its stop flag between two of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/checked.h"
#include "kv/plan.h"

namespace nxl::kv {

// True when every piece of `run` lies inside both regions; the numbers may come from anyone.
inline bool run_within(const Run& run, uint64_t source_bytes, uint64_t target_bytes) {
  if (run.count == 0) return true;
  const auto inside = [&](uint64_t offset, uint64_t stride, uint64_t total) {
    const auto last = checked_mul(stride, run.count - 1);
    const auto extent = last ? checked_add(*last, run.bytes) : std::nullopt;
    return extent && range_within(offset, *extent, total);
  };
  return inside(run.source_offset, run.source_stride, source_bytes) &&
         inside(run.target_offset, run.target_stride, target_bytes);
}

// The bytes of all runs; nullopt when the sum is not representable.
inline std::optional<uint64_t> total_bytes(std::span<const Run> runs) {
  uint64_t total = 0;
  for (const Run& run : runs) {
    const auto bytes = checked_mul(run.bytes, run.count);
    const auto sum = bytes ? checked_add(total, *bytes) : std::nullopt;
    if (!sum) return std::nullopt;
    total = *sum;
  }
  return total;
}

class RunCursor {
 public:
  explicit RunCursor(std::span<const Run> runs) : runs_(runs) { skip_empty(); }

  bool at_end() const { return run_ == runs_.size(); }
  size_t run() const { return run_; }  // index of the run that next() continues

  // The next part, of at most `most_bytes` (> 0) and `most_pieces` (> 0): whole pieces of one run, or a slice of one
  // piece when not even one fits. Call it only when not at the end.
  Run next(uint64_t most_bytes, uint64_t most_pieces = UINT32_MAX) {
    const Run& run = runs_[run_];
    Run part = run;
    part.source_offset += piece_ * run.source_stride + offset_;
    part.target_offset += piece_ * run.target_stride + offset_;
    if (offset_ == 0 && run.bytes <= most_bytes) {
      part.count = static_cast<uint32_t>(std::min({run.count - piece_, most_bytes / run.bytes, most_pieces}));
      piece_ += part.count;
    } else {
      part.count = 1;
      part.bytes = std::min(run.bytes - offset_, most_bytes);
      offset_ += part.bytes;
      if (offset_ == run.bytes) offset_ = 0, ++piece_;
    }
    if (piece_ == run.count) piece_ = 0, ++run_, skip_empty();
    return part;
  }

 private:
  void skip_empty() {
    while (run_ != runs_.size() && (runs_[run_].bytes == 0 || runs_[run_].count == 0)) ++run_;
  }

  std::span<const Run> runs_;
  size_t run_ = 0;
  uint64_t piece_ = 0;   // of the run
  uint64_t offset_ = 0;  // into the piece
};

}  // namespace nxl::kv
