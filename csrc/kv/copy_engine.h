// SPDX-License-Identifier: Apache-2.0
// A fixed pool of copy threads that share the bytes of one large transfer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/api.h"
#include "kv/provider.h"

namespace nxl::kv {

class NXL_API CopyEngine {
 public:
  // Under this many bytes per thread the hand-over costs more than it gains.
  static constexpr uint64_t kBytesWorthAThread = 2 << 20;

  // `threads` copy one transfer: the caller of read() and threads - 1 of the pool (at least 1 in all).
  explicit CopyEngine(uint32_t threads);
  ~CopyEngine();  // no read() may be running
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // As Channel::read, which it calls once or, split by bytes, several times at once. Blocks until every part has
  // returned, so that no byte lands afterwards. When one part fails, `progress.stop` is set to end the others, and the
  // first failure in order of runs that is no mere echo of it is returned. Thread safe: parts of several transfers
  // queue for the pool.
  CopyResult read(Channel& channel, std::span<const Run> runs, Progress& progress, Deadline deadline);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// One thread's part of a transfer: whole runs of it, and before and behind them what a cut left of a run.
struct RunPart {
  std::vector<Run> head, tail;  // up to three each: rest of a piece, whole pieces, start of a piece
  std::span<const Run> whole;
  size_t head_run = 0, whole_run = 0, tail_run = 0;  // indices in the transfer
};

// Cuts `runs` of `total_bytes` > 0 into at most `parts` stretches of about equal bytes, in order. Runs are referred to,
// not copied, except for those that are cut.
NXL_API std::vector<RunPart> split_runs(std::span<const Run> runs, uint64_t total_bytes, uint32_t parts);

}  // namespace nxl::kv
