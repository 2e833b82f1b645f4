// SPDX-License-Identifier: Apache-2.0
// Channels over data connections: a few streams per peer, used by one read each.
#include "kv/providers/tcp_provider.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "kv/providers/tcp_data_server.h"
#include "kv/providers/tcp_data_stream.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

constexpr uint32_t kMostStreams = 8;  // per peer and direction
constexpr std::chrono::milliseconds kLook(20);
constexpr std::string_view kOverIpv6 = "/6";

class TcpChannel final : public Channel {
 public:
  TcpChannel(ProviderHost& host, const ChannelSetup& setup, Address address, TcpDataServer* server)
      : host_(host),
        setup_(setup),
        address_(std::move(address)),
        server_(server),
        most_streams_(std::clamp(host.copy_threads() + 1, 2u, kMostStreams)),
        regions_(setup.regions ? setup.regions : std::make_shared<const RemoteRegionMap>()) {
    if (server_) server_->add_session(setup_.session, setup_.secret, setup_.initiator);
  }
  ~TcpChannel() override { shut_down(); }

  const char* provider() const override { return "tcp"; }
  Capabilities capabilities() const override { return {.can_cancel = true, .chunk_bytes = kDataChunkBytes}; }

  void set_peer_regions(std::shared_ptr<const RemoteRegionMap> regions) override {
    std::lock_guard lock(mutex_);
    regions_ = std::move(regions);
  }

  bool reaches(const RemoteRegion& region) const override { return region.readable; }

  CopyResult read(std::span<const Run> runs, Progress& progress, Deadline deadline) override {
    const Patience patience{&progress.stop, &down_, deadline};
    CopyResult result;
    auto stream = take_stream(patience, &result);
    if (!stream) return result;
    ReadTables tables{nullptr, host_.regions()};
    {
      std::lock_guard lock(mutex_);
      tables.sources = regions_;
    }
    result = stream->read(runs, tables, host_.data_checksum(), progress, patience);
    give_back(std::move(stream));
    return result;
  }

  Status read_word(uint64_t index, uint64_t* value, Deadline deadline) override {
    const Patience patience{nullptr, &down_, deadline};
    CopyResult result;
    auto stream = take_stream(patience, &result);
    if (!stream) return result.status;
    const Status status = stream->read_word(index, value, patience);
    give_back(std::move(stream));
    return status;
  }

  void shut_down() override {
    if (down_.exchange(true)) return;
    if (server_) server_->remove_session(setup_.session);
    std::lock_guard lock(mutex_);
    idle_.clear();
    returned_.notify_all();
  }

 private:
  // An idle stream, or a new one while there are fewer than most_streams_, or the next that comes back.
  std::unique_ptr<DataStream> take_stream(const Patience& patience, CopyResult* failure) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (auto ended = interruption(patience)) {
        *failure = *ended;
        return nullptr;
      }
      while (!idle_.empty()) {
        auto stream = std::move(idle_.back());
        idle_.pop_back();
        if (!stream->stale()) return stream;
        --open_;
      }
      if (open_ < most_streams_) break;
      returned_.wait_for(lock, kLook);
    }
    ++open_;
    lock.unlock();
    auto stream = DataStream::open(address_, setup_, patience, failure);
    if (!stream) {
      lock.lock();
      --open_;
      returned_.notify_one();
    }
    return stream;
  }

  static std::optional<CopyResult> interruption(const Patience& patience) {
    if (patience.session_over->load()) return CopyResult{{NRT_CLOSED, "tcp: the session is over"}, Cause::kPeerLost, 0};
    if (patience.stop && patience.stop->load()) return CopyResult{{NRT_FAILURE, "tcp: stopped"}, Cause::kCancelled, 0};
    if (std::chrono::steady_clock::now() < patience.deadline) return std::nullopt;
    return CopyResult{{NRT_TIMEOUT, "tcp: the deadline passed"}, Cause::kDeadline, 0};
  }

  void give_back(std::unique_ptr<DataStream> stream) {
    std::lock_guard lock(mutex_);
    if (stream->broken() || down_.load()) {
      stream.reset();
      --open_;
    } else {
      idle_.push_back(std::move(stream));
    }
    returned_.notify_one();
  }

  ProviderHost& host_;
  const ChannelSetup setup_;
  const Address address_;
  TcpDataServer* const server_;  // null when this side could not listen
  const uint32_t most_streams_;
  std::atomic<bool> down_{false};
  std::mutex mutex_;
  std::condition_variable returned_;
  std::shared_ptr<const RemoteRegionMap> regions_;
  std::vector<std::unique_ptr<DataStream>> idle_;
  uint32_t open_ = 0;  // idle and in use
};

class TcpProvider final : public Provider {
 public:
  explicit TcpProvider(ProviderHost& host) : host_(host) {}
  const char* name() const override { return "tcp"; }

  std::string advertise() override {
    std::lock_guard lock(mutex_);
    if (!listened_) listen();
    return advertisement_;
  }

  std::unique_ptr<Channel> open(const ChannelSetup& setup, std::string* why) override {
    if (setup.advertisement.empty()) {
      *why = "the peer does not listen for data connections";
      return nullptr;
    }
    std::string_view text = setup.advertisement;
    Address address{.unix_socket = false, .path = {}, .host = setup.remote_host, .port = 0};
    const bool ipv6 = text.ends_with(kOverIpv6);
    if (ipv6) text.remove_suffix(kOverIpv6.size());
    // A peer on this host is never looked for elsewhere, whatever it advertises.
    if (setup.unix_socket) address.host = ipv6 ? "::1" : "127.0.0.1";
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), address.port);
    if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size() || address.port == 0 ||
        address.host.empty()) {
      *why = "the peer's data port is malformed";
      return nullptr;
    }
    std::lock_guard lock(mutex_);
    return std::make_unique<TcpChannel>(host_, setup, std::move(address), server_.get());
  }

 private:
  void listen() {
    listened_ = true;
    Address address{.unix_socket = false, .path = {}, .host = host_.bind_host(), .port = 0};
    try {
      GuardedFd listener = listen_at(address);
      server_ = std::make_unique<TcpDataServer>(host_, std::move(listener));
      advertisement_ = std::to_string(address.port);
      if (address.host.find(':') != std::string::npos) advertisement_ += kOverIpv6;
    } catch (const Error& error) {
      NXL_LOG(kWarning, "kv agent ", host_.agent_name(), ": no data listener, tcp serves nobody: ", error.what());
    }
  }

  ProviderHost& host_;
  std::mutex mutex_;
  bool listened_ = false;
  std::string advertisement_;
  std::unique_ptr<TcpDataServer> server_;  // outlives every channel: the agent drops those first
};

}  // namespace

std::unique_ptr<Provider> make_tcp_provider(ProviderHost& host) { return std::make_unique<TcpProvider>(host); }

}  // namespace nxl::kv
