// SPDX-License-Identifier: Apache-2.0
// Agent: the public interface of the KV-transfer runtime. One object per engine; several may live in one process.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/api.h"
#include "core/status.h"
#include "kv/descriptors.h"
#include "kv/layout.h"
#include "kv/plan.h"
#include "kv/provider.h"
#include "kv/region.h"

namespace nxl::kv {

using Milliseconds = std::chrono::milliseconds;

struct AgentConfig {
  std::string name;                    // unique among the peers that meet
  std::string bind;                    // "unix:/path", "tcp:127.0.0.1:0"; empty: a Unix socket in a private folder
  std::string key_file;                // pre-shared key, mode 0600; needed for any bind off this host
  bool insecure = false;               // allow such a bind without a key
  std::vector<std::string> providers;  // allowed ones in order of preference; empty: loopback, shm, cma, tcp
  bool data_checksum = false;          // CRC32C over tcp data
  uint32_t copy_threads = 1;
  Milliseconds default_deadline{30000};  // of a transfer posted with deadline 0
  uint32_t max_peers = 1024;
  uint32_t max_regions = 4096;
  uint32_t max_leases = 65536;
  uint32_t max_transfers = 65536;
  uint64_t max_bytes_in_flight = uint64_t{64} << 30;
  uint64_t max_notification_bytes = 64 << 20;  // waiting to be acknowledged per peer, and waiting to be polled
  uint64_t inline_bytes = 64 << 10;            // a one-sided transfer of at most this completes inside post()
  Milliseconds keep_alive{1000};               // an idle session is pinged this often
  Milliseconds suspect_after{2000};            // silence after which a peer is kSuspect
  Milliseconds down_after{10000};              // and after which its session is given up
};

enum class PeerState : uint8_t { kHandshaking, kUp, kSuspect, kDown };
enum class TransferState : uint8_t { kPrepared, kPosted, kActive, kCancelling, kDone, kFailed, kCancelled };
NXL_API const char* state_name(PeerState state);
NXL_API const char* state_name(TransferState state);
constexpr bool is_terminal(TransferState state) { return state >= TransferState::kDone; }

struct TransferStatus {
  TransferState state = TransferState::kPrepared;
  Cause cause = Cause::kNone;
  std::string message;
  bool quiesced = true;  // no byte of it can land any more
  uint64_t bytes_done = 0;
  // Of a planned transfer that ended in another way than kDone: the tokens that are not in place in all layers. All of
  // them until it is quiesced, when its cause says that no byte of it is to be trusted (kLeaseExpired, kIntegrity), and
  // when a lease could not be looked at once more.
  std::vector<TokenRange> failed_tokens;
};

// Microseconds spent in each stage, for telemetry.
struct TransferTimes {
  double plan = 0;      // prepare_*: planning and checks
  double post = 0;      // inside post(), on the caller's thread
  double queue = 0;     // until a copy thread took it
  double wire = 0;      // moving bytes; of a WRITE: at the target, from the request to the result
  double flush = 0;     // of those: making them visible, where the provider needs that
  double validate = 0;  // lease words before and after
  double total = 0;     // post() to the terminal state
  // READ: from done until the peer acknowledged what the transfer owed it (its notification, the finished lease); 0
  // until then, or when it owed nothing. WRITE: the way of the request and of its status, without the target's work.
  double ack = 0;
  uint64_t bytes = 0, runs = 0;
  std::string provider;
};

struct Notification {
  std::string peer;
  std::string payload;
};

using PeerId = uint64_t;  // stays the same over reconnects; 0 is none
using TransferId = uint64_t;
using LeaseId = uint64_t;

struct PeerInfo {
  PeerId id = 0;
  std::string name;      // empty until the first handshake
  std::string endpoint;  // what connect() was given; empty for a peer that connected to us
  Key incarnation{};
  PeerState state = PeerState::kHandshaking;
  std::string why;                     // it is not up
  std::vector<std::string> providers;  // that reach it, preferred first
  uint64_t reconnects = 0;
};

// A lease as it travels to the reader, inside the serving stack's own request.
struct LeaseTicket {
  LeaseId id = 0;
  Key key{};
  uint64_t word = 0;        // index in the producer's lease table
  uint64_t generation = 0;  // what that word holds while the lease is valid
};

enum class LeaseEnd : uint8_t { kRead, kExpired, kReleased };  // all readers finished; ttl over; release_lease()
NXL_API const char* lease_end_name(LeaseEnd end);

// The blocks of a lease are the producer's again. One event per lease.
struct LeaseEvent {
  LeaseId id = 0;
  std::string request;
  LeaseEnd end = LeaseEnd::kRead;
  std::string reason;  // of release_lease
  std::vector<uint32_t> blocks;
};

struct KvReadOptions {
  bool finish_lease = true;  // when done, tell the producer that this reader needs the lease no more
  bool zero_tail = false;    // clear the slots of the last local block behind the range
};

class NXL_API Agent {
 public:
  // Throws Error(kInvalid) for a bad configuration (names the field), kUnavailable when the address cannot be bound.
  static std::unique_ptr<Agent> create(AgentConfig config);
  virtual ~Agent() = default;  // as close()

  virtual const AgentConfig& config() const = 0;  // the effective one
  virtual std::string endpoint() const = 0;
  virtual Key incarnation() const = 0;  // random per agent start

  // Regions. deregister is BUSY (NRT_RESOURCE) while a lease or a transfer uses the region.
  virtual uint32_t register_region(const RegionDescription& description) = 0;
  virtual Status deregister(uint32_t region) = 0;
  // The layout of the KV cache over registered regions (KvLayout::region_bytes are those of `regions`). Peers that are
  // up get it at once; a peer whose own layout cannot meet it is disconnected with the field's name.
  virtual void describe_kv(const KvLayout& layout, std::span<const uint32_t> regions) = 0;

  // Peers. connect blocks until the peer is up, the handshake refused it (throws, naming the field) or the deadline;
  // once it was up, a lost session is opened again by the agent itself.
  virtual PeerId connect(const std::string& endpoint, Milliseconds deadline) = 0;
  virtual PeerId find_peer(const std::string& name) const = 0;  // 0: none; prefers one that is up
  virtual PeerState peer_state(PeerId peer, std::string* why) const = 0;
  virtual PeerInfo peer_info(PeerId peer) const = 0;
  virtual std::vector<PeerInfo> peers() const = 0;
  virtual std::vector<RemoteRegion> peer_regions(PeerId peer) const = 0;
  // The peer's KV layout and the region each of its regions is, false when it has described none.
  virtual bool peer_layout(PeerId peer, KvLayout* layout, std::vector<uint32_t>* regions) const = 0;
  virtual void disconnect(PeerId peer) = 0;  // fails its transfers with kPeerLost; no reconnect

  // Leases, producer side. Readers are agent names.
  virtual LeaseTicket grant(const std::string& request, std::span<const uint32_t> blocks,
                            std::span<const std::string> readers, Milliseconds ttl) = 0;
  virtual Status renew(LeaseId lease, Milliseconds ttl) = 0;                   // counts from now
  virtual Status release_lease(LeaseId lease, const std::string& reason) = 0;  // OK again for one that has ended
  virtual std::vector<LeaseEvent> poll_lease_events(size_t most) = 0;
  // Reader side: this agent needs the lease no more. Delivered as a notification is; repeating it changes nothing.
  virtual Status finish_lease(PeerId peer, const LeaseTicket& lease) = 0;

  // Transfers. prepare_* validate every range and throw Error(kInvalid); post returns at once. Runs: for a READ
  // source_region is the peer's and target_region ours; for a WRITE source_region is ours, target_region the peer's.
  virtual TransferId prepare_read(PeerId peer, std::vector<Run> runs) = 0;
  virtual TransferId prepare_read(PeerId peer, std::vector<Run> runs, const LeaseTicket& lease) = 0;
  virtual TransferId prepare_write(PeerId peer, std::vector<Run> runs) = 0;  // carried out by the target reading
  // The same by numbers in two lists that were checked before: descriptor source_indices[i] of `source` goes to
  // target_indices[i] of `target`, which must be as long. Neighbours are joined.
  virtual TransferId prepare_read(PeerId peer, const DescriptorList& source, std::span<const uint32_t> source_indices,
                                  const DescriptorList& target, std::span<const uint32_t> target_indices) = 0;
  virtual TransferId prepare_write(PeerId peer, const DescriptorList& source, std::span<const uint32_t> source_indices,
                                   const DescriptorList& target, std::span<const uint32_t> target_indices) = 0;
  virtual TransferId prepare_kv_read(PeerId peer, const LeaseTicket& lease, TokenRange tokens, const BlockList& remote,
                                     const BlockList& local, const KvReadOptions& options) = 0;
  // Without a lease nothing is fenced: the caller answers for the peer's blocks staying as they are.
  virtual TransferId prepare_kv_read(PeerId peer, TokenRange tokens, const BlockList& remote, const BlockList& local,
                                     const KvReadOptions& options) = 0;
  virtual TransferId prepare_kv_write(PeerId peer, TokenRange tokens, const BlockList& local,
                                      const BlockList& remote) = 0;
  // `notification` reaches the peer after the data, and only if the transfer is done; empty: none. NRT_RESOURCE when a
  // limit of the configuration is reached: nothing was posted, post again later. A finished transfer may be posted
  // again once it is quiesced.
  virtual Status post(TransferId transfer, Milliseconds deadline, const std::string& notification) = 0;
  virtual TransferStatus check(TransferId transfer) const = 0;
  virtual TransferState state(TransferId transfer) const = 0;  // of check(), at the price of a look: for polling
  // A time-out here cancels nothing. A caller with time enough carries out a one-sided READ that no copy thread has
  // begun.
  virtual TransferStatus wait(TransferId transfer, Milliseconds timeout) = 0;
  // An eventfd of the agent's, good until release(): readable once terminal, and written again when it is quiesced only
  // later.
  virtual int completion_fd(TransferId transfer) = 0;
  virtual void cancel(TransferId transfer) = 0;
  virtual Status release(TransferId transfer) = 0;  // BUSY (NRT_RESOURCE) until terminal and quiesced
  virtual TransferTimes times(TransferId transfer) const = 0;

  // NRT_RESOURCE when the peer's queue is full. Kept over reconnects to the same incarnation.
  virtual Status notify(PeerId peer, const std::string& payload) = 0;
  virtual std::vector<Notification> poll_notifications(size_t most) = 0;

  virtual std::string prometheus() const = 0;
  virtual std::string stats_json() const = 0;
  virtual std::string dump_in_flight() const = 0;
  virtual bool healthy(std::string* why) const = 0;

  // No new post, no WRITE of a peer; waits for what is in flight (NRT_TIMEOUT). Peers may go on reading. It holds until
  // resume(), also after a time-out; a draining agent says so in healthy().
  virtual Status drain(Milliseconds timeout) = 0;
  virtual void resume() = 0;
  // Fails what is in flight with kClosed, waits until it is quiesced, lets go. After a fork the child's copy of an
  // agent is closed: calls throw Error(kClosed) or return NRT_CLOSED.
  virtual void close() = 0;
};

}  // namespace nxl::kv
