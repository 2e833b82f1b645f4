// SPDX-License-Identifier: Apache-2.0
// Splitting, the pool, and the one outcome of several parts.
#include "kv/copy_engine.h"

#include <algorithm>
#include <latch>
#include <new>

#include "kv/providers/run_cursor.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

// Bytes [begin, end) of a run, counted over its pieces.
std::vector<Run> slice(const Run& run, uint64_t begin, uint64_t end) {
  std::vector<Run> parts;
  while (begin != end) {
    const uint64_t piece = begin / run.bytes;
    const uint64_t skipped = begin % run.bytes;
    Run part = run;
    part.source_offset += piece * run.source_stride + skipped;
    part.target_offset += piece * run.target_stride + skipped;
    if (skipped == 0 && end - begin >= run.bytes) {
      part.count = static_cast<uint32_t>((end - begin) / run.bytes);
    } else {
      part.count = 1;
      part.bytes = std::min(run.bytes - skipped, end - begin);
    }
    begin += part.total_bytes();
    parts.push_back(part);
  }
  return parts;
}

// `first_failed_run` becomes an index in the transfer.
CopyResult read_part(Channel& channel, const RunPart& part, Progress& progress, Deadline deadline) {
  CopyResult result;
  if (!part.head.empty()) {
    result = channel.read(part.head, progress, deadline);
    result.first_failed_run = part.head_run;
  }
  if (result.status.is_ok() && !part.whole.empty()) {
    result = channel.read(part.whole, progress, deadline);
    result.first_failed_run += part.whole_run;
  }
  if (result.status.is_ok() && !part.tail.empty()) {
    result = channel.read(part.tail, progress, deadline);
    result.first_failed_run = part.tail_run;
  }
  return result;
}

// A pool thread must survive what a channel throws, which is std::bad_alloc at most.
CopyResult read_part_guarded(Channel& channel, const RunPart& part, Progress& progress, Deadline deadline) noexcept {
  CopyResult result;
  try {
    result = read_part(channel, part, progress, deadline);
  } catch (const std::exception& error) {
    result.status.code = NRT_FAIL_HOST_MEM_ALLOC;
    result.cause = Cause::kProvider;
    result.first_failed_run = part.head.empty() ? part.whole_run : part.head_run;
  }
  if (!result.status.is_ok()) progress.stop.store(true, std::memory_order_release);
  return result;
}

}  // namespace

std::vector<RunPart> split_runs(std::span<const Run> runs, uint64_t total, uint32_t parts) {
  std::vector<RunPart> split;
  const uint64_t share = total / parts + (total % parts != 0);
  size_t run = 0;
  uint64_t taken = 0;  // bytes of `run` that the part before has
  while (run != runs.size()) {
    RunPart& part = split.emplace_back();
    uint64_t left = share;
    if (taken != 0) {
      const uint64_t end = std::min(runs[run].total_bytes(), taken + left);
      part.head = slice(runs[run], taken, end);
      part.head_run = run;
      left -= end - taken;
      taken = end == runs[run].total_bytes() ? 0 : end;
      if (taken != 0) continue;
      ++run;
    }
    part.whole_run = run;
    for (; run != runs.size() && runs[run].total_bytes() <= left; ++run) left -= runs[run].total_bytes();
    part.whole = runs.subspan(part.whole_run, run - part.whole_run);
    if (left != 0 && run != runs.size()) {
      part.tail = slice(runs[run], 0, left);
      part.tail_run = run;
      taken = left;
    }
  }
  return split;
}

CopyEngine::CopyEngine(uint32_t threads) {
  for (uint32_t i = 1; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

CopyEngine::~CopyEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyEngine::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

CopyResult CopyEngine::read(Channel& channel, std::span<const Run> runs, Progress& progress, Deadline deadline) {
  const uint64_t total = total_bytes(runs).value_or(0);
  const auto useful = std::min<uint64_t>(threads_.size() + 1, total / kBytesWorthAThread);
  if (useful <= 1) return channel.read(runs, progress, deadline);

  const std::vector<RunPart> parts = split_runs(runs, total, static_cast<uint32_t>(useful));
  std::vector<CopyResult> results(parts.size());
  std::latch others(static_cast<std::ptrdiff_t>(parts.size() - 1));
  const auto run_part = [&](size_t i) { results[i] = read_part_guarded(channel, parts[i], progress, deadline); };
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 1; i < parts.size(); ++i) {
      queue_.emplace_back([&run_part, &others, i] {
        run_part(i);
        others.count_down();
      });
    }
  }
  wake_.notify_all();
  run_part(0);
  others.wait();

  CopyResult outcome;
  uint64_t first_failed = UINT64_MAX;
  for (const CopyResult& result : results) {
    if (result.status.is_ok()) continue;
    first_failed = std::min(first_failed, result.first_failed_run);
    const bool echo = result.cause == Cause::kCancelled;
    if (outcome.status.is_ok() || (outcome.cause == Cause::kCancelled && !echo)) outcome = result;
  }
  if (!outcome.status.is_ok()) outcome.first_failed_run = first_failed;
  return outcome;
}

}  // namespace nxl::kv
