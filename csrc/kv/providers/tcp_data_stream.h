// SPDX-License-Identifier: Apache-2.0
// The reading half of `tcp`: one data connection, on which one read at a time places bytes straight where they belong.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "kv/auth.h"
#include "kv/fork_guard.h"
#include "kv/provider.h"
#include "kv/providers/tcp_frames.h"
#include "kv/socket.h"

namespace nxl::kv {

// What ends a wait: the transfer's own stop flag and deadline, and the end of the session.
struct Patience {
  const std::atomic<bool>* stop = nullptr;  // may be null
  const std::atomic<bool>* session_over = nullptr;
  Deadline deadline = Deadline::max();
};

struct ReadTables {
  std::shared_ptr<const RemoteRegionMap> sources;
  std::shared_ptr<const RegionMap> targets;
};

// Not thread safe. After a failure other than a refusal of the peer the stream is broken: whatever the peer may still
// send stays in the socket and is thrown away with it.
class DataStream {
 public:
  // Connects and proves the session's secret both ways. Null with the reason in `failure`.
  static std::unique_ptr<DataStream> open(const Address& address, const ChannelSetup& setup, const Patience& patience,
                                          CopyResult* failure);

  int fd() const { return fd_.get(); }
  bool broken() const { return broken_; }
  // True when the peer closed or wrote while nothing was asked for: the stream cannot be used any more.
  bool stale() const;

  CopyResult read(std::span<const Run> runs, const ReadTables& tables, bool checksum, Progress& progress,
                  const Patience& patience);
  Status read_word(uint64_t index, uint64_t* value, const Patience& patience);

 private:
  explicit DataStream(GuardedFd fd) : fd_(std::move(fd)) {}

  GuardedFd fd_;
  bool broken_ = false;
  uint64_t next_sequence_ = 1;
};

}  // namespace nxl::kv
