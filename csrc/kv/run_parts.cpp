// SPDX-License-Identifier: Apache-2.0
// Cutting runs.
#include "kv/run_parts.h"

#include <algorithm>

namespace nxl::kv {
namespace {

constexpr uint64_t kCut = 4096;

// Moves up to `room` bytes from the front of `run` to `part`; false when nothing sensible fits.
bool take(Run& run, uint64_t room, std::vector<Run>& part) {
  if (run.total_bytes() <= room) {
    part.push_back(run);
    run.count = 0;
    return true;
  }
  if (room >= run.bytes) {
    Run head = run;
    head.count = static_cast<uint32_t>(room / run.bytes);
    part.push_back(head);
    run.count -= head.count;
    run.source_offset += uint64_t{head.count} * run.source_stride;
    run.target_offset += uint64_t{head.count} * run.target_stride;
    return true;
  }
  const uint64_t bytes = room / kCut * kCut;
  if (run.count != 1 || bytes == 0) return false;
  Run head = run;
  head.bytes = bytes;
  part.push_back(head);
  run.bytes -= bytes;
  run.source_offset += bytes;
  run.target_offset += bytes;
  return true;
}

}  // namespace

std::vector<std::vector<Run>> split_runs(std::span<const Run> runs, uint64_t bytes, size_t count) {
  const uint64_t share = std::max<uint64_t>(1, bytes / count + (bytes % count != 0));
  std::vector<std::vector<Run>> parts(1);
  uint64_t room = share;
  for (Run run : runs) {
    while (run.count != 0) {
      const bool last = parts.size() == count;
      const uint64_t before = run.total_bytes();
      if (take(run, last ? UINT64_MAX : room, parts.back())) {
        const uint64_t moved = before - (run.count == 0 ? 0 : run.total_bytes());
        room -= std::min(room, moved);
        continue;
      }
      // One piece is larger than what is left here: it goes to the next part, whole or cut there.
      if (parts.back().empty()) {
        Run head = run;
        head.count = 1;
        parts.back().push_back(head);
        run.count -= 1;
        run.source_offset += run.source_stride;
        run.target_offset += run.target_stride;
        room -= std::min(room, head.bytes);
        continue;
      }
      parts.emplace_back();
      room = share;
    }
  }
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

}  // namespace nxl::kv
