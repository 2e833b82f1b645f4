// SPDX-License-Identifier: Apache-2.0
// A provider moves bytes between this process and its peers. The agent tries the allowed ones in order of preference,
// keeps a channel of each that reaches the peer, and uses for a transfer the first that reaches all of its regions.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/api.h"
#include "core/status.h"
#include "kv/plan.h"
#include "kv/region.h"

namespace nxl::kv {

using Deadline = std::chrono::steady_clock::time_point;

// Why a transfer ended: exactly one per transfer. kNone only while it has not ended or when it is done.
enum class Cause : uint8_t {
  kNone,
  kCancelled,     // cancel() was called
  kDeadline,      // the deadline passed
  kPeerLost,      // the peer died, closed, or is a new incarnation
  kLeaseExpired,  // the blocks were taken back before the read was over: the bytes are not to be used
  kRefused,       // the peer refused: wrong key, bounds, direction, limits
  kProvider,      // the provider failed; the message has its own text
  kIntegrity,     // a checksum or a size did not fit
  kClosed,        // this agent was closed
};
inline constexpr size_t kCauseCount = 9;
NXL_API const char* cause_name(Cause cause);  // "none", "cancelled", "deadline", ...

struct Capabilities {
  bool one_sided = false;            // the peer's CPU takes no part in a read; such a transfer may complete inside post
  bool can_cancel = false;           // a copy looks at Progress::stop between chunks
  uint64_t max_runs = UINT64_MAX;    // of one read() call; the agent splits longer ones
  uint64_t chunk_bytes = 256 << 10;  // at most this much is copied between two looks at the stop flag
};

// Shared by the agent and the thread that copies.
struct Progress {
  std::atomic<bool> stop{false};  // set by cancel, deadline, peer loss: the copy returns at the next chunk
  std::atomic<uint64_t> bytes_done{0};
};

struct CopyResult {
  Status status;                  // code 0: all bytes in place, and flushed where the provider needs that
  Cause cause = Cause::kNone;     // with a failed status; kNone there counts as kProvider
  uint64_t first_failed_run = 0;  // runs before it are in place, from here on they may be partly written
  double flush_us = 0;            // of the time it took: making what had arrived visible, where the provider needs that
};

// One way to one peer, for one session. Thread safe. When read() has returned, not one more byte of it lands: that is
// what Agent::release() rests on. It must return soon after `deadline`, and within a chunk or 50 ms of `stop`.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual const char* provider() const = 0;  // "shm", "cma", "tcp", "loopback"
  virtual Capabilities capabilities() const = 0;
  // Called on the control thread when a region joins or leaves the peer's table; called before the first read.
  virtual void set_peer_regions(std::shared_ptr<const RemoteRegionMap> regions) = 0;
  virtual bool reaches(const RemoteRegion& region) const = 0;
  // Copies `runs` (source_region: index in the peer's table, target_region: index in ours) from the peer's memory into
  // ours. The agent checked indices and bounds against both tables. It may split one transfer among its copy threads:
  // several calls then share one Progress, so bytes_done is added to, never set.
  virtual CopyResult read(std::span<const Run> runs, Progress& progress, Deadline deadline) = 0;
  // Word `index` of the peer's lease table, loaded with acquire order after everything read() has copied before.
  virtual Status read_word(uint64_t index, uint64_t* value, Deadline deadline) = 0;
  // The session is over: reads return at once, blocked ones wake up. The peer serves nothing over it any more.
  virtual void shut_down() = 0;
};

// What open() is told about the session. Both ends open their channel before either may read over it.
struct ChannelSetup {
  std::string peer;                  // its name
  uint64_t session = 0;              // the same number at both ends, random
  std::array<uint8_t, 32> secret{};  // the same at both ends, for proofs on data connections; never logged
  bool initiator = false;            // this side opened the control connection
  bool unix_socket = false;          // the control connection is one: same host, descriptors were passed
  pid_t pid = 0;                     // of the peer, from SO_PEERCRED; 0 over TCP
  std::string remote_host;           // of the control connection when it is TCP: numeric address
  std::string advertisement;         // what the peer's provider of this name advertised
  std::shared_ptr<const RemoteRegion> lease_table;  // 8-byte words; region index UINT32_MAX
  std::shared_ptr<const RemoteRegionMap> regions;   // as in set_peer_regions
};

class Provider {
 public:
  virtual ~Provider() = default;
  virtual const char* name() const = 0;
  // At most 1 KiB for the peer's open(), such as the port of a data listener.
  virtual std::string advertise() = 0;
  // Null when this peer cannot be reached this way; `why` then says so in one line. Runs on the control thread: it may
  // map and probe, it must not wait for the peer (a data connection is made at the first read).
  virtual std::unique_ptr<Channel> open(const ChannelSetup& setup, std::string* why) = 0;
};

// What a provider may ask of its agent. Outlives the provider; thread safe.
class ProviderHost {
 public:
  virtual ~ProviderHost() = default;
  virtual std::shared_ptr<const RegionMap> regions() const = 0;  // the table of this process
  virtual uint64_t lease_word(uint64_t index) const = 0;         // 0 when there is no such word
  virtual std::string bind_host() const = 0;                     // where data listeners bind: "127.0.0.1", "::", ...
  virtual bool data_checksum() const = 0;
  virtual uint32_t copy_threads() const = 0;
  virtual const std::string& agent_name() const = 0;
};

// "loopback", "shm", "cma", "tcp" (providers/registry.cpp). Throws Error(kInvalid) for another name, and
// kUnavailable with the reason when this host lacks what it needs.
NXL_API std::unique_ptr<Provider> make_provider(const std::string& name, ProviderHost& host);

// A read-only descriptor that covers exactly `description`'s memory, its offset in `offset`; empty when there is none
// (providers/memory_export.cpp). Throws nothing: memory that cannot be exported is reached by cma or tcp.
NXL_API UniqueFd export_memory(const RegionDescription& description, uint64_t* offset);

}  // namespace nxl::kv
