// SPDX-License-Identifier: Apache-2.0
// Runs to batches of pieces, batch by batch, with a look at the stop flag and the clock between two of them.
#include "kv/providers/run_copy.h"

#include <array>

#include "core/error.h"
#include "kv/providers/run_cursor.h"
#include "kv/providers/streaming_copy.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

constexpr size_t kBatchPieces = 1024;

// Regions that runs have named before: those of one layer follow each other, and layers come again with later tokens.
template <typename Bytes>
class SeenRegions {
 public:
  template <typename LookUp>
  Bytes get(uint32_t wanted, LookUp&& look_up) {
    Entry& entry = entries_[wanted % entries_.size()];
    if (entry.named != uint64_t{wanted} + 1) entry = {uint64_t{wanted} + 1, look_up(wanted)};
    return entry.bytes;
  }

 private:
  struct Entry {
    uint64_t named = 0;  // the index plus one
    Bytes bytes;
  };
  std::array<Entry, 128> entries_;
};

}  // namespace

std::span<std::byte> region_bytes(const RegionMap& regions, uint32_t index) {
  const auto found = regions.find(index);
  if (found == regions.end()) return {};
  const RegionDescription& description = found->second->description;
  return {static_cast<std::byte*>(description.address), description.bytes};
}

std::optional<CopyResult> interruption(const Progress& progress, Deadline deadline, size_t run) {
  if (progress.stop.load(std::memory_order_acquire)) {
    return CopyResult{{NRT_FAILURE, "stopped at run " + std::to_string(run)}, Cause::kCancelled, run};
  }
  if (std::chrono::steady_clock::now() >= deadline) {
    return CopyResult{{NRT_TIMEOUT, "the deadline passed at run " + std::to_string(run)}, Cause::kDeadline, run};
  }
  return std::nullopt;
}

CopyResult out_of_bounds(const char* provider, std::span<const Run> runs, size_t index, uint64_t source_bytes,
                         uint64_t target_bytes) {
  const Run& run = runs[index];
  return {
      {NRT_INVALID, detail::concat(provider, ": run ", index, " of ", run.count, " x ", run.bytes,
                                   " bytes (source region ", run.source_region, " at ", run.source_offset, ", stride ",
                                   run.source_stride, "; target region ", run.target_region, " at ", run.target_offset,
                                   ", stride ", run.target_stride, ") is not inside the regions of ", source_bytes,
                                   " and ", target_bytes, " bytes (0: not registered or not reachable this way)")},
      Cause::kProvider,
      index};
}

CopyResult copy_mapped(const char* provider, std::span<const Run> runs, const MappedSource& sources,
                       const RegionMap& targets, uint64_t chunk_bytes, Progress& progress, Deadline deadline) {
  const std::optional<uint64_t> total = total_bytes(runs);
  const Stores stores = total && *total <= kCachedBytes ? Stores::kOrdinary : Stores::kNonTemporal;
  std::array<Piece, kBatchPieces> batch;
  SeenRegions<std::span<const std::byte>> source;
  SeenRegions<std::span<std::byte>> target;
  size_t checked_runs = 0;  // runs before this one lie inside their regions
  RunCursor cursor(runs);
  while (!cursor.at_end()) {
    const size_t first_run = cursor.run();
    if (auto stopped = interruption(progress, deadline, first_run)) return *stopped;
    size_t pieces = 0;
    uint64_t bytes = 0;
    std::optional<CopyResult> refused;
    while (!cursor.at_end() && pieces < batch.size() && bytes < chunk_bytes) {
      const size_t index = cursor.run();
      const auto from = source.get(runs[index].source_region, [&](uint32_t region) { return sources.source(region); });
      const auto to =
          target.get(runs[index].target_region, [&](uint32_t region) { return region_bytes(targets, region); });
      if (index >= checked_runs) {
        if (!run_within(runs[index], from.size(), to.size())) {
          refused = out_of_bounds(provider, runs, index, from.size(), to.size());
          break;
        }
        checked_runs = index + 1;
      }
      const Run part = cursor.next(chunk_bytes - bytes, batch.size() - pieces);
      const std::byte* from_piece = from.data() + part.source_offset;
      std::byte* to_piece = to.data() + part.target_offset;
      for (uint32_t i = 0; i < part.count; ++i) {
        batch[pieces++] = {to_piece, from_piece, part.bytes};
        from_piece += part.source_stride;
        to_piece += part.target_stride;
      }
      bytes += part.total_bytes();
    }
    copy_pieces(std::span(batch).first(pieces), stores);
    progress.bytes_done.fetch_add(bytes, std::memory_order_relaxed);
    if (refused) return *refused;
  }
  return {};
}

}  // namespace nxl::kv
