// SPDX-License-Identifier: Apache-2.0
// Agent as callers hold it: it knows whether this process is the one that made it. In the child of a fork the threads
// behind an agent do not exist and its locks may be held for ever, so nothing of it is touched there.
#include "kv/agent.h"

#include "core/error.h"
#include "kv/agent_core.h"
#include "kv/fork_guard.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {
namespace {

class ProcessAgent final : public Agent {
 public:
  ProcessAgent(AgentConfig config, AgentParts parts)
      : generation_(fork_generation()), core_(std::make_unique<AgentCore>(std::move(config), std::move(parts))) {}
  ~ProcessAgent() override {
    if (forked()) static_cast<void>(core_.release());  // the parent's threads are not here to be joined
  }

  const AgentConfig& config() const override { return core().config(); }
  std::string endpoint() const override { return core().endpoint(); }
  Key incarnation() const override { return core().incarnation(); }

  uint32_t register_region(const RegionDescription& description) override {
    return core().register_region(description);
  }
  Status deregister(uint32_t region) override { return forked() ? closed() : core_->deregister(region); }
  void describe_kv(const KvLayout& layout, std::span<const uint32_t> regions) override {
    core().describe_kv(layout, regions);
  }

  PeerId connect(const std::string& endpoint, Milliseconds deadline) override {
    return core().connect(endpoint, deadline);
  }
  PeerId find_peer(const std::string& name) const override { return core().find_peer(name); }
  PeerState peer_state(PeerId peer, std::string* why) const override {
    const PeerInfo info = core().peer_info(peer);
    if (why != nullptr) *why = info.why;
    return info.state;
  }
  PeerInfo peer_info(PeerId peer) const override { return core().peer_info(peer); }
  std::vector<PeerInfo> peers() const override { return core().peers(); }
  std::vector<RemoteRegion> peer_regions(PeerId peer) const override { return core().peer_regions(peer); }
  bool peer_layout(PeerId peer, KvLayout* layout, std::vector<uint32_t>* regions) const override {
    return core().peer_layout(peer, layout, regions);
  }
  void disconnect(PeerId peer) override { core().disconnect(peer); }

  LeaseTicket grant(const std::string& request, std::span<const uint32_t> blocks, std::span<const std::string> readers,
                    Milliseconds ttl) override {
    return core().grant(request, blocks, readers, ttl);
  }
  Status renew(LeaseId lease, Milliseconds ttl) override { return forked() ? closed() : core_->renew(lease, ttl); }
  Status release_lease(LeaseId lease, const std::string& reason) override {
    return forked() ? closed() : core_->release_lease(lease, reason);
  }
  std::vector<LeaseEvent> poll_lease_events(size_t most) override { return core().poll_lease_events(most); }
  Status finish_lease(PeerId peer, const LeaseTicket& lease) override {
    return forked() ? closed() : core_->finish_lease(peer, lease);
  }

  TransferId prepare_read(PeerId peer, std::vector<Run> runs) override {
    return core().prepare(TransferKind::kRead, peer, std::move(runs), nullptr);
  }
  TransferId prepare_read(PeerId peer, std::vector<Run> runs, const LeaseTicket& lease) override {
    return core().prepare(TransferKind::kRead, peer, std::move(runs), &lease);
  }
  TransferId prepare_write(PeerId peer, std::vector<Run> runs) override {
    return core().prepare(TransferKind::kWrite, peer, std::move(runs), nullptr);
  }
  TransferId prepare_read(PeerId peer, const DescriptorList& source, std::span<const uint32_t> source_indices,
                          const DescriptorList& target, std::span<const uint32_t> target_indices) override {
    return prepare_read(peer, runs_between(source, source_indices, target, target_indices));
  }
  TransferId prepare_write(PeerId peer, const DescriptorList& source, std::span<const uint32_t> source_indices,
                           const DescriptorList& target, std::span<const uint32_t> target_indices) override {
    return prepare_write(peer, runs_between(source, source_indices, target, target_indices));
  }
  TransferId prepare_kv_read(PeerId peer, const LeaseTicket& lease, TokenRange tokens, const BlockList& remote,
                             const BlockList& local, const KvReadOptions& options) override {
    return core().prepare_kv(TransferKind::kRead, peer, &lease, tokens, remote, local, options);
  }
  TransferId prepare_kv_read(PeerId peer, TokenRange tokens, const BlockList& remote, const BlockList& local,
                             const KvReadOptions& options) override {
    return core().prepare_kv(TransferKind::kRead, peer, nullptr, tokens, remote, local, options);
  }
  TransferId prepare_kv_write(PeerId peer, TokenRange tokens, const BlockList& local,
                              const BlockList& remote) override {
    return core().prepare_kv(TransferKind::kWrite, peer, nullptr, tokens, remote, local, {});
  }

  Status post(TransferId transfer, Milliseconds deadline, const std::string& notification) override {
    return forked() ? closed() : core_->post(transfer, deadline, notification);
  }
  TransferStatus check(TransferId transfer) const override { return core().check(transfer); }
  TransferState state(TransferId transfer) const override { return core().state(transfer); }
  TransferStatus wait(TransferId transfer, Milliseconds timeout) override { return core().wait(transfer, timeout); }
  int completion_fd(TransferId transfer) override { return core().completion_fd(transfer); }
  void cancel(TransferId transfer) override { core().cancel(transfer); }
  Status release(TransferId transfer) override { return forked() ? closed() : core_->release(transfer); }
  TransferTimes times(TransferId transfer) const override { return core().times(transfer); }

  Status notify(PeerId peer, const std::string& payload) override {
    return forked() ? closed() : core_->notify(peer, payload);
  }
  std::vector<Notification> poll_notifications(size_t most) override { return core().poll_notifications(most); }

  std::string prometheus() const override { return core().prometheus(); }
  std::string stats_json() const override { return core().stats_json(); }
  std::string dump_in_flight() const override { return core().dump_in_flight(); }
  bool healthy(std::string* why) const override {
    if (!forked()) return core_->healthy(why);
    if (why != nullptr) *why = closed().message;
    return false;
  }

  Status drain(Milliseconds timeout) override { return forked() ? closed() : core_->drain(timeout); }
  void resume() override { core().resume(); }
  void close() override {
    if (!forked()) core_->close();
  }

 private:
  bool forked() const { return fork_generation() != generation_; }
  static Status closed() { return {kNrtClosed, "this process is a fork of the one that made the kv agent"}; }
  AgentCore& core() const {
    NXL_CHECK(!forked(), kClosed, closed().message, "; make an agent of its own after the fork");
    return *core_;
  }

  const uint64_t generation_;
  std::unique_ptr<AgentCore> core_;
};

}  // namespace

std::unique_ptr<Agent> make_agent(AgentConfig config, AgentParts parts) {
  return std::make_unique<ProcessAgent>(std::move(config), std::move(parts));
}

std::unique_ptr<Agent> Agent::create(AgentConfig config) {
  AgentParts parts;
  parts.make_provider = [](const std::string& name, ProviderHost& host) { return make_provider(name, host); };
  return make_agent(std::move(config), std::move(parts));
}

}  // namespace nxl::kv
