// SPDX-License-Identifier: Apache-2.0
// What is behind Agent. Three kinds of threads meet here: callers, the control thread, copy threads. One mutex guards
// peers, links and transfers; it is never held while bytes are copied or a handshake is checked.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/agent.h"
#include "kv/copy_workers.h"
#include "kv/event_loop.h"
#include "kv/lease_table.h"
#include "kv/metrics.h"
#include "kv/notifications.h"
#include "kv/process_life.h"
#include "kv/provider.h"
#include "kv/region_table.h"
#include "kv/session.h"
#include "kv/transfer.h"

namespace nxl::kv {

// What tests replace.
struct AgentParts {
  std::function<std::unique_ptr<Provider>(const std::string&, ProviderHost&)> make_provider;
  FrameFilter frame_filter;
  Milliseconds handshake{5000};
  Milliseconds resend_after{500};  // an unacknowledged notification, a WRITE without a status
};
NXL_API std::unique_ptr<Agent> make_agent(AgentConfig config, AgentParts parts);

// A local layout and where its regions are; immutable.
struct DescribedKv {
  KvLayout layout;
  std::vector<uint32_t> regions;
};

// One session that reached its metadata. Channels are fixed; the rest is guarded by the agent's mutex.
struct Link {
  uint64_t number = 0;
  PeerId peer = 0;
  std::string peer_name;
  Key incarnation{};
  bool initiator = false;
  std::shared_ptr<Session> session;
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<std::array<TransferCounters*, 3>> counters;  // by channel and kind; the last entry: no channel

  bool down = false;
  std::shared_ptr<const ProcessLife> process;  // of a peer on this host; null when nothing can be said
  uint64_t in_flight = 0;                      // transfers of this side
  bool watched = false;                        // look_at() is due
  std::shared_ptr<CopyWorkers> workers;  // of its channels that wait for the peer, so that others do not wait with them
  std::shared_ptr<const RemoteRegionMap> regions;
  std::shared_ptr<const DescribedKv> remote_kv, local_kv;
  std::shared_ptr<const Plan> read_plan, write_plan;
  uint64_t serving = 0;                                             // WRITEs of the peer that are being read
  std::unordered_map<uint64_t, std::shared_ptr<Transfer>> served;   // by the peer's request number
  std::unordered_map<uint64_t, WriteStatusMessage> served_results;  // of those that ended
  std::deque<uint64_t> served_order;                                // oldest result first
};

struct PeerEntry {
  explicit PeerEntry(uint64_t max_notification_bytes) : outbox(max_notification_bytes) {}
  PeerId id = 0;
  std::string endpoint;  // empty: it connected to us
  Address address;
  std::string name;
  Key incarnation{};
  PeerState state = PeerState::kHandshaking;
  std::string why;
  bool wanted = true;    // connect() asked for it and nobody disconnected it
  bool refused = false;  // by a handshake; tried again, slowly
  bool ever_up = false;
  uint64_t reconnects = 0;
  Milliseconds backoff{0};
  EventLoop::TimerId timer = 0;
  std::shared_ptr<Session> session;  // the present attempt or session
  std::shared_ptr<Link> link;        // while up
  Outbox outbox;
  // What finished transfers owe it, by number in the outbox, for the time that the acknowledgement takes.
  struct Owed {
    uint64_t number = 0;
    std::weak_ptr<Transfer> transfer;
    std::chrono::steady_clock::time_point since{};
  };
  std::deque<Owed> owed;
};

class AgentCore : private SessionHost, private ProviderHost {
 public:
  AgentCore(AgentConfig config, AgentParts parts);
  ~AgentCore() override;
  void close();

  const AgentConfig& config() const { return config_; }
  std::string endpoint() const { return address_.text(); }
  Key incarnation() const { return incarnation_; }

  // agent_core.cpp
  uint32_t register_region(const RegionDescription& description);
  Status deregister(uint32_t region);
  void describe_kv(const KvLayout& layout, std::span<const uint32_t> regions);
  LeaseTicket grant(const std::string& request, std::span<const uint32_t> blocks, std::span<const std::string> readers,
                    Milliseconds ttl);
  Status renew(LeaseId lease, Milliseconds ttl);
  Status release_lease(LeaseId lease, const std::string& reason);
  std::vector<LeaseEvent> poll_lease_events(size_t most);

  // agent_peers.cpp
  PeerId connect(const std::string& endpoint, Milliseconds deadline);

  // agent_peer_views.cpp
  PeerId find_peer(const std::string& name) const;
  PeerInfo peer_info(PeerId peer) const;
  std::vector<PeerInfo> peers() const;
  std::vector<RemoteRegion> peer_regions(PeerId peer) const;
  bool peer_layout(PeerId peer, KvLayout* layout, std::vector<uint32_t>* regions) const;
  void disconnect(PeerId peer);

  // agent_notifications.cpp
  Status finish_lease(PeerId peer, const LeaseTicket& lease);
  Status notify(PeerId peer, const std::string& payload);
  std::vector<Notification> poll_notifications(size_t most);

  // agent_prepare.cpp
  TransferId prepare(TransferKind kind, PeerId peer, std::vector<Run> runs, const LeaseTicket* lease);
  TransferId prepare_kv(TransferKind kind, PeerId peer, const LeaseTicket* lease, TokenRange tokens,
                        const BlockList& remote, const BlockList& local, const KvReadOptions& options);

  // agent_transfers.cpp
  Status post(TransferId transfer, Milliseconds deadline, const std::string& notification);

  // agent_waits.cpp
  TransferStatus check(TransferId transfer) const;
  TransferState state(TransferId transfer) const;
  TransferStatus wait(TransferId transfer, Milliseconds timeout);
  int completion_fd(TransferId transfer);
  void cancel(TransferId transfer);
  Status release(TransferId transfer);
  TransferTimes times(TransferId transfer) const;
  Status drain(Milliseconds timeout);
  void resume();

  // agent_report.cpp
  std::string prometheus() const;
  std::string stats_json() const;
  std::string dump_in_flight() const;
  bool healthy(std::string* why) const;

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Lock = std::unique_lock<std::mutex>;
  using TransferPtr = std::shared_ptr<Transfer>;
  using PeerPtr = std::shared_ptr<PeerEntry>;

  // ProviderHost
  std::shared_ptr<const RegionMap> regions() const override { return regions_.snapshot(); }
  uint64_t lease_word(uint64_t index) const override { return leases_.word(index); }
  std::string bind_host() const override;
  bool data_checksum() const override { return config_.data_checksum; }
  uint32_t copy_threads() const override { return config_.copy_threads; }
  const std::string& agent_name() const override { return config_.name; }

  // SessionHost
  void on_proved(Session& session) override;
  MetadataMessage local_metadata(int* lease_descriptor) override;
  std::shared_ptr<const RegionMap> local_regions() override { return regions_.snapshot(); }
  void on_metadata(Session& session) override;
  void on_up(Session& session) override;
  void on_regions(Session& session) override;
  void on_layout(Session& session) override;
  void on_frame(Session& session, const Frame& frame) override;
  void on_heard(Session& session, bool suspect) override;
  void on_tick(Session& session) override;
  void on_lost(Session& session) override;
  void on_drained(Session& session) override;
  void on_closed(Session& session) override;

  // agent_core.cpp
  static void check_config(AgentConfig& config);
  void make_providers();
  void check_open() const;  // throws kClosed
  void arm_lease_timer();
  SessionConfig session_config() const;

  // agent_peers.cpp, control thread
  void listen();
  void accept_ready();
  void open_session(const PeerPtr& peer);
  void schedule_reconnect(const PeerPtr& peer, Lock& lock);
  void close_when_quiet(Session& session);
  void evict(const PeerPtr& peer, const std::string& why);
  std::shared_ptr<Link> link_of(const Session& session) const;
  // agent_peer_views.cpp
  PeerPtr find(PeerId peer) const;                   // with mutex_; throws kInvalid
  std::shared_ptr<Link> link_up(PeerId peer) const;  // with mutex_; throws kUnavailable when the peer is not up
  PeerInfo info(const PeerEntry& peer) const;

  // agent_links.cpp, control thread
  std::shared_ptr<Link> make_link(Session& session, const PeerPtr& peer);
  void watch(const std::shared_ptr<Link>& link);    // with mutex_; any thread
  void look_at(const std::shared_ptr<Link>& link);  // while transfers are in flight: is the process there?
  void make_plans(Link& link, const Session& session, std::shared_ptr<const DescribedKv> local);
  void replan_all();

  // agent_notifications.cpp
  Status queue_notification(PeerEntry& peer, NotifyKind kind, std::string payload);  // with mutex_
  void send_notifications(PeerEntry& peer);                                          // with mutex_
  void acknowledged(PeerEntry& peer, uint64_t number);                               // with mutex_
  void forget_notifications(PeerEntry& peer);                                        // with mutex_
  void on_notify(Session& session, const Frame& frame);

  // agent_prepare.cpp
  std::vector<Run> take_runs();                  // with mutex_
  void give_back_runs(std::vector<Run>&& runs);  // with mutex_
  TransferId keep(TransferPtr transfer, Time began);
  void choose_channel(Transfer& transfer, std::span<const uint32_t> remote_regions, const RemoteRegionMap& regions);

  // agent_transfers.cpp; with mutex_ unless said
  TransferPtr find_transfer(TransferId transfer) const;
  void run(const TransferPtr& transfer);  // copy thread or post(), without mutex_
  struct Parts;
  void run_part(const std::shared_ptr<Parts>& parts, size_t index);                             // without mutex_
  void copied(const TransferPtr& transfer, CopyResult result, std::vector<ByteRange> missing);  // without mutex_
  Status check_lease(Transfer& transfer, Cause* cause);                                         // without mutex_
  CopyWorkers& workers_for(Transfer& transfer);
  void stop(const TransferPtr& transfer, Cause cause, const std::string& message);
  void moved(const TransferPtr& transfer, const Status& status, Cause cause);
  void apply(const TransferPtr& transfer, TransferMachine::Effect effect, bool was_in_flight);
  void ended(const TransferPtr& transfer);
  void signal(Transfer& transfer);
  void expire(TransferId transfer);

  // agent_writes.cpp
  void send_write_request(const TransferPtr& transfer);  // control thread
  void send_write_query(Transfer& transfer);             // with mutex_
  void on_write_request(Session& session, const Frame& frame);
  void on_write_query(Session& session, const Frame& frame);
  void on_write_cancel(Session& session, const Frame& frame);
  void on_write_status(Session& session, const Frame& frame);
  void served(const TransferPtr& transfer);                     // with mutex_
  void remember_result(Link& link, WriteStatusMessage status);  // with mutex_

  Report report() const;                               // with mutex_
  void health(bool* healthy, std::string* why) const;  // with mutex_

  AgentConfig config_;
  const AgentParts parts_;
  const Key incarnation_;
  std::vector<std::byte> key_;
  Address address_;
  std::string private_folder_;  // of the default Unix socket
  RegionTable regions_;
  LeaseTable leases_;
  GuardedFd listener_;

  mutable std::mutex mutex_;
  std::condition_variable peers_changed_;
  std::condition_variable in_flight_changed_;
  bool closed_ = false;
  bool draining_ = false;
  std::map<PeerId, PeerPtr> peers_;
  PeerId next_peer_ = 1;
  std::unordered_map<TransferId, TransferPtr> transfers_;
  std::vector<std::vector<Run>> spare_runs_;  // storage of released transfers: fresh pages cost more than planning
  std::unordered_map<uint64_t, TransferPtr> writes_;  // by request number, until quiesced
  TransferId next_transfer_ = 1;
  uint64_t next_request_ = 1;
  uint64_t live_sessions_ = 0;
  uint64_t in_flight_ = 0;  // posted by callers or served, and not both ended and quiesced
  uint64_t bytes_in_flight_ = 0;
  std::shared_ptr<const DescribedKv> local_kv_;
  std::map<std::pair<std::string, bool>, InboxStream> streams_;  // by peer name and whether it is the acceptor
  std::deque<Notification> inbox_;
  uint64_t inbox_bytes_ = 0;
  Metrics metrics_;
  std::vector<std::shared_ptr<CopyWorkers>> retired_workers_;
  EventLoop::TimerId lease_timer_ = 0;
  std::optional<Time> lease_timer_at_;

  // Control thread.
  std::unordered_map<const Session*, std::shared_ptr<Session>> sessions_;
  std::unordered_map<const Session*, PeerPtr> session_peers_;
  std::unordered_map<const Session*, std::shared_ptr<Link>> session_links_;
  uint64_t turned_away_ = 0;
  Time warned_at_{};

  // Last, so that their threads end before what they use.
  std::vector<std::unique_ptr<Provider>> providers_;
  std::unique_ptr<CopyWorkers> workers_;
  std::unique_ptr<EventLoop> loop_;
};

}  // namespace nxl::kv
