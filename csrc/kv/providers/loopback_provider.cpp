// SPDX-License-Identifier: Apache-2.0
// Agents of this process find each other through a table of random tokens, which they advertise.
#include "kv/providers/loopback_provider.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "core/error.h"
#include "kv/auth.h"
#include "kv/providers/run_copy.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

// What channels of the peer keep of an agent. Its lock is held shared while they read and alone when the agent goes.
struct Presence {
  std::shared_mutex mutex;
  ProviderHost* host = nullptr;  // null once the agent is gone
};

struct Directory {
  std::mutex mutex;
  std::map<Key, std::shared_ptr<Presence>> present;

  static Directory& instance() {
    static auto* directory = new Directory;  // agents may end after static destructors
    return *directory;
  }
};

std::string to_text(const Key& key) { return {reinterpret_cast<const char*>(key.data()), sizeof(key)}; }

// Holds every region that a read has come to. Its owner may take one away until it is held, so it is looked up once
// more then: from there on it is BUSY.
class Sources final : public MappedSource {
 public:
  explicit Sources(const ProviderHost& owner) : owner_(owner), regions_(owner.regions()) {}

  std::span<const std::byte> source(uint32_t index) const override {
    const auto found = regions_->find(index);
    if (found == regions_->end() || !found->second->description.readable) return {};
    if (std::ranges::none_of(held_, [&](const RegionHold& region) { return region->index == index; })) {
      held_.emplace_back(found->second);
      if (!owner_.regions()->contains(index)) return {};
    }
    return region_bytes(*regions_, index);
  }

 private:
  const ProviderHost& owner_;
  const std::shared_ptr<const RegionMap> regions_;
  mutable std::vector<RegionHold> held_;
};

class LoopbackChannel final : public Channel {
 public:
  LoopbackChannel(ProviderHost& host, std::shared_ptr<Presence> peer) : host_(host), peer_(std::move(peer)) {}

  const char* provider() const override { return "loopback"; }
  Capabilities capabilities() const override { return {.one_sided = true, .can_cancel = true}; }
  void set_peer_regions(std::shared_ptr<const RemoteRegionMap>) override {}
  bool reaches(const RemoteRegion&) const override { return true; }

  CopyResult read(std::span<const Run> runs, Progress& progress, Deadline deadline) override {
    std::shared_lock lock(peer_->mutex);
    if (!usable()) return session_over();
    const std::shared_ptr<const RegionMap> targets = host_.regions();
    return copy_mapped(provider(), runs, Sources(*peer_->host), *targets, capabilities().chunk_bytes, progress,
                       deadline);
  }

  Status read_word(uint64_t index, uint64_t* value, Deadline) override {
    std::shared_lock lock(peer_->mutex);
    if (!usable()) return session_over().status;
    std::atomic_thread_fence(std::memory_order_acquire);  // the copies before it are plain loads
    *value = peer_->host->lease_word(index);
    return {};
  }

  void shut_down() override { down_.store(true, std::memory_order_release); }

 private:
  bool usable() const { return peer_->host != nullptr && !down_.load(std::memory_order_acquire); }
  static CopyResult session_over() {
    return {{NRT_CLOSED, "loopback: the session with the peer is over"}, Cause::kPeerLost};
  }

  ProviderHost& host_;
  const std::shared_ptr<Presence> peer_;
  std::atomic<bool> down_{false};
};

class LoopbackProvider final : public Provider {
 public:
  explicit LoopbackProvider(ProviderHost& host)
      : host_(host), token_(random_key()), presence_(std::make_shared<Presence>()) {
    presence_->host = &host;
    Directory& directory = Directory::instance();
    std::lock_guard lock(directory.mutex);
    directory.present.emplace(token_, presence_);
  }

  ~LoopbackProvider() override {
    Directory& directory = Directory::instance();
    {
      std::lock_guard lock(directory.mutex);
      directory.present.erase(token_);
    }
    std::unique_lock lock(presence_->mutex);  // waits for reads from our memory: one transfer's copy at most
    presence_->host = nullptr;
  }

  const char* name() const override { return "loopback"; }
  std::string advertise() override { return to_text(token_); }

  std::unique_ptr<Channel> open(const ChannelSetup& setup, std::string* why) override {
    Directory& directory = Directory::instance();
    std::lock_guard lock(directory.mutex);
    for (const auto& [token, presence] : directory.present) {
      if (to_text(token) == setup.advertisement) return std::make_unique<LoopbackChannel>(host_, presence);
    }
    *why = "the peer is another process";
    return nullptr;
  }

 private:
  ProviderHost& host_;
  const Key token_;
  const std::shared_ptr<Presence> presence_;
};

}  // namespace

std::unique_ptr<Provider> make_loopback_provider(ProviderHost& host) {
  return std::make_unique<LoopbackProvider>(host);
}

}  // namespace nxl::kv
