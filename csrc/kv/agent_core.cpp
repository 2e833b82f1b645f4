// SPDX-License-Identifier: Apache-2.0
// An agent's beginning and end, its regions and its leases.
#include "kv/agent_core.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/log.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {
namespace {

constexpr uint32_t kMaxCopyThreads = 64;
constexpr std::chrono::milliseconds kGoodbye{1000};  // close() waits this long for peers to take leave

std::string make_private_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::string path = (runtime != nullptr && *runtime == '/') ? runtime : "/tmp";
  path += "/nxl-kv-XXXXXX";
  NXL_CHECK(::mkdtemp(path.data()) != nullptr, kUnavailable, "folder ", path, ": ", std::strerror(errno));
  return path;
}

}  // namespace

AgentCore::AgentCore(AgentConfig config, AgentParts parts)
    : config_((check_config(config), std::move(config))),
      parts_(std::move(parts)),
      incarnation_(random_key()),
      regions_(config_.max_regions, &export_memory),
      leases_(config_.max_leases) {
  if (!config_.key_file.empty()) key_ = load_key_file(config_.key_file);
  if (config_.bind.empty()) {
    private_folder_ = make_private_folder();
    config_.bind = "unix:" + private_folder_ + "/agent";
  }
  address_ = Address::parse(config_.bind);
  NXL_CHECK(!address_.off_host() || !key_.empty() || config_.insecure, kInvalid, "bind ", config_.bind,
            " can be reached from other hosts: set key_file on both agents (insecure=True goes without, for tests)");
  workers_ = std::make_unique<CopyWorkers>("kv-copy-", config_.copy_threads);
  loop_ = std::make_unique<EventLoop>(config_.name);
  make_providers();
  listen();
  std::string names;
  for (const auto& provider : providers_) names += std::string(names.empty() ? "" : ", ") + provider->name();
  NXL_LOG(kInfo, "kv agent ", config_.name, " at ", endpoint(), ": providers ", names, "; key ",
          key_.empty() ? "none" : config_.key_file, "; copy_threads ", config_.copy_threads, ", default_deadline ",
          config_.default_deadline.count(), " ms, inline_bytes ", config_.inline_bytes, ", max_bytes_in_flight ",
          config_.max_bytes_in_flight);
}

AgentCore::~AgentCore() {
  close();
  // Channels go before the providers that made them; transfers and peers hold the last ones.
  transfers_.clear();
  writes_.clear();
  peers_.clear();
}

void AgentCore::check_config(AgentConfig& config) {
  NXL_CHECK(!config.name.empty() && config.name.size() <= kMaxName, kInvalid, "name has ", config.name.size(),
            " bytes, it must have 1 to ", kMaxName);
  NXL_CHECK(config.copy_threads >= 1 && config.copy_threads <= kMaxCopyThreads, kInvalid, "copy_threads is ",
            config.copy_threads, ", it must be 1 to ", kMaxCopyThreads);
  const auto positive = [](const char* field, auto value) {
    NXL_CHECK(value > 0, kInvalid, field, " is ", value, ", it must be positive");
  };
  positive("default_deadline", config.default_deadline.count());
  positive("max_peers", config.max_peers);
  positive("max_regions", config.max_regions);
  positive("max_leases", config.max_leases);
  positive("max_transfers", config.max_transfers);
  positive("max_bytes_in_flight", config.max_bytes_in_flight);
  positive("max_notification_bytes", config.max_notification_bytes);
  positive("keep_alive", config.keep_alive.count());
  NXL_CHECK(config.keep_alive < config.suspect_after && config.suspect_after < config.down_after, kInvalid,
            "keep_alive (", config.keep_alive.count(), " ms), suspect_after (", config.suspect_after.count(),
            " ms) and down_after (", config.down_after.count(), " ms) must rise in this order");
}

void AgentCore::make_providers() {
  const bool chosen = !config_.providers.empty();
  if (!chosen) config_.providers = {"loopback", "shm", "cma", "tcp"};
  for (const std::string& name : config_.providers) {
    try {
      providers_.push_back(parts_.make_provider(name, *this));
    } catch (const Error& error) {
      if (chosen || error.kind() != ErrorKind::kUnavailable) throw;
      NXL_LOG(kInfo, "kv agent ", config_.name, " goes without provider ", name, ": ", error.what());
    }
  }
  NXL_CHECK(!providers_.empty(), kUnavailable, "no provider can be used on this host");
}

void AgentCore::check_open() const { NXL_CHECK(!closed_, kClosed, "kv agent ", config_.name, " was closed"); }

SessionConfig AgentCore::session_config() const {
  return {config_.name,     incarnation_,       key_, config_.keep_alive, config_.suspect_after, config_.down_after,
          parts_.handshake, parts_.frame_filter};
}

void AgentCore::close() {
  {
    Lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    leases_.end_life();
    for (const auto& [id, peer] : peers_) peer->wanted = false;
    peers_changed_.notify_all();
    std::vector<TransferPtr> all;
    for (const auto& [id, transfer] : transfers_) all.push_back(transfer);
    for (const auto& [id, peer] : peers_) {
      if (!peer->link) continue;
      for (const auto& [request, transfer] : peer->link->served) all.push_back(transfer);
    }
    for (const TransferPtr& transfer : all) stop(transfer, Cause::kClosed, "the agent was closed");
  }
  // Sessions end after what they served has come to rest: the peer takes the closed socket as proof of that.
  loop_->call([this] {
    if (listener_) {
      loop_->unwatch(listener_.get());
      listener_.reset();
      if (address_.unix_socket) ::unlink(address_.path.c_str());
      if (!private_folder_.empty()) ::rmdir(private_folder_.c_str());
    }
    std::vector<std::shared_ptr<Session>> open;
    for (const auto& [key, session] : sessions_) open.push_back(session);
    for (const auto& session : open) session->end("the agent closes", false);
    Lock lock(mutex_);
    in_flight_changed_.notify_all();
  });
  {
    Lock lock(mutex_);
    in_flight_changed_.wait_for(lock, kGoodbye, [this] { return in_flight_ == 0 && live_sessions_ == 0; });
  }
  loop_->stop();
  loop_->join();
  // Joins the copy threads: every read() returns within a chunk of its stop flag.
  workers_.reset();
  std::vector<std::shared_ptr<CopyWorkers>> retired;
  {
    Lock lock(mutex_);
    retired.swap(retired_workers_);
    for (const auto& [id, peer] : peers_) {
      if (peer->link && peer->link->workers) retired.push_back(std::move(peer->link->workers));
    }
  }
  retired.clear();
  // The control thread is gone: its maps are this thread's now.
  std::vector<std::shared_ptr<Session>> left;
  for (const auto& [key, session] : sessions_) left.push_back(session);
  for (const auto& session : left) session->close();
  Lock lock(mutex_);
  // Nothing moves any more: copy threads have ended, and a WRITE is the peer's own affair from here on.
  std::vector<TransferPtr> open;
  for (const auto& [id, transfer] : transfers_) {
    if (!transfer->machine.quiesced()) open.push_back(transfer);
  }
  for (const auto& [request, transfer] : writes_) open.push_back(transfer);
  for (const TransferPtr& transfer : open) moved(transfer, {kNrtClosed, "the agent was closed"}, Cause::kClosed);
  for (const auto& [id, peer] : peers_) {
    peer->state = PeerState::kDown;
    peer->why = "the agent was closed";
    peer->session.reset();
    peer->link.reset();
  }
  peers_changed_.notify_all();
}

std::string AgentCore::bind_host() const { return address_.unix_socket ? "127.0.0.1" : address_.host; }

uint32_t AgentCore::register_region(const RegionDescription& description) {
  {
    const Lock lock(mutex_);
    check_open();
  }
  const auto region = regions_.add(description);
  loop_->call([this] {
    for (const auto& [key, session] : sessions_) session->sync_regions();
  });
  return region->index;
}

Status AgentCore::deregister(uint32_t region) {
  {
    const Lock lock(mutex_);
    const uint64_t live = leases_.counts().live;
    if (live != 0 && local_kv_ &&
        std::find(local_kv_->regions.begin(), local_kv_->regions.end(), region) != local_kv_->regions.end()) {
      return {kNrtResource, detail::concat("region ", region, " holds the KV cache and ", live,
                                           " leases are live; release them first")};
    }
  }
  Status status = regions_.remove(region);
  if (status.is_ok()) {
    loop_->call([this] {
      for (const auto& [key, session] : sessions_) session->sync_regions();
    });
  }
  return status;
}

void AgentCore::describe_kv(const KvLayout& layout, std::span<const uint32_t> regions) {
  layout.validate("local");
  NXL_CHECK(regions.size() == layout.region_bytes.size(), kInvalid, "KV layout: ", regions.size(),
            " regions are given for ", layout.region_bytes.size(), " of the layout");
  const auto table = regions_.snapshot();
  for (size_t i = 0; i < regions.size(); ++i) {
    const auto it = table->find(regions[i]);
    NXL_CHECK(it != table->end(), kInvalid, "KV layout: region ", regions[i], " is not registered");
    NXL_CHECK(it->second->description.bytes >= layout.region_bytes[i], kInvalid, "KV layout: region ", regions[i],
              " has ", it->second->description.bytes, " bytes, region_bytes[", i, "] is ", layout.region_bytes[i]);
  }
  auto described = std::make_shared<DescribedKv>(DescribedKv{layout, {regions.begin(), regions.end()}});
  {
    const Lock lock(mutex_);
    check_open();
    local_kv_ = std::move(described);
  }
  loop_->call([this] { replan_all(); });
}

LeaseTicket AgentCore::grant(const std::string& request, std::span<const uint32_t> blocks,
                             std::span<const std::string> readers, Milliseconds ttl) {
  {
    const Lock lock(mutex_);
    check_open();
    if (local_kv_) {
      for (const uint32_t block : blocks) {
        NXL_CHECK(block < local_kv_->layout.block_count, kInvalid, "lease for ", request, ": block ", block,
                  " is outside the pool of ", local_kv_->layout.block_count);
      }
    }
  }
  const LeaseTicket ticket = leases_.grant(request, blocks, readers, ttl, Clock::now());
  arm_lease_timer();
  return ticket;
}

Status AgentCore::renew(LeaseId lease, Milliseconds ttl) {
  Status status = leases_.renew(lease, ttl, Clock::now());
  arm_lease_timer();
  return status;
}

Status AgentCore::release_lease(LeaseId lease, const std::string& reason) { return leases_.release(lease, reason); }

std::vector<LeaseEvent> AgentCore::poll_lease_events(size_t most) { return leases_.poll(most); }

void AgentCore::arm_lease_timer() {
  const auto next = leases_.next_expiry();
  const Lock lock(mutex_);
  if (!next || (lease_timer_at_ && *lease_timer_at_ <= *next)) return;
  if (lease_timer_at_) loop_->cancel(lease_timer_);
  lease_timer_at_ = next;
  lease_timer_ = loop_->at(*next, [this] {
    {
      const Lock inner(mutex_);
      lease_timer_at_.reset();
    }
    const size_t count = leases_.expire(Clock::now());
    if (count != 0) NXL_LOG(kInfo, "kv agent ", config_.name, ": ", count, " leases expired");
    arm_lease_timer();
  });
}

}  // namespace nxl::kv
