// SPDX-License-Identifier: Apache-2.0
// What a session needs before bytes move: channels that reach the peer, and plans proved for both layouts.
#include "core/error.h"
#include "core/log.h"
#include "kv/agent_core.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {
namespace {

constexpr std::chrono::milliseconds kLookAtProcess{20};  // a few microseconds each

// The peer's words about itself, held against the regions it has announced.
std::shared_ptr<const DescribedKv> checked_remote(const LayoutMessage& message, const RemoteRegionMap& regions,
                                                  const std::string& peer) {
  const KvLayout& layout = message.layout;
  for (size_t i = 0; i < message.regions.size(); ++i) {
    const auto it = regions.find(message.regions[i]);
    NXL_CHECK(it != regions.end(), kInvalid, "KV layout of ", peer, ": region ", message.regions[i],
              " was not announced");
    NXL_CHECK(it->second->bytes >= layout.region_bytes[i], kInvalid, "KV layout of ", peer, ": region ",
              message.regions[i], " has ", it->second->bytes, " bytes, region_bytes[", i, "] is ",
              layout.region_bytes[i]);
  }
  layout.validate(peer);
  return std::make_shared<DescribedKv>(DescribedKv{layout, message.regions});
}

}  // namespace

void AgentCore::watch(const std::shared_ptr<Link>& link) {
  if (!link->process || link->down || std::exchange(link->watched, true)) return;
  loop_->at(Clock::now() + kLookAtProcess, [this, link] { look_at(link); });
}

void AgentCore::look_at(const std::shared_ptr<Link>& link) {
  {
    const Lock lock(mutex_);
    link->watched = false;
    if (link->down || link->in_flight == 0) return;
    watch(link);
  }
  if (link->process->ending()) {
    link->session->end(detail::concat("process ", link->process->pid(), " of the peer is ending"), false);
  }
}

std::shared_ptr<Link> AgentCore::make_link(Session& session, const PeerPtr& peer) {
  auto link = std::make_shared<Link>();
  link->number = session.number();
  link->peer = peer->id;
  link->peer_name = session.name();
  link->incarnation = session.incarnation();
  link->initiator = session.initiator();
  link->session = session.shared_from_this();
  link->regions = session.regions();
  if (session.unix_socket()) link->process = ProcessLife::of(session.pid());

  auto lease_table = std::make_shared<RemoteRegion>();
  lease_table->index = UINT32_MAX;
  lease_table->address = session.metadata().lease_table_address;
  lease_table->bytes = session.metadata().lease_table_bytes;
  lease_table->name = "lease table";
  lease_table->readable = true;
  lease_table->fd = session.lease_descriptor();

  ChannelSetup setup;
  setup.peer = session.name();
  setup.session = session.number();
  setup.secret = session.data_secret();
  setup.initiator = session.initiator();
  setup.unix_socket = session.unix_socket();
  setup.pid = session.pid();
  setup.remote_host = session.remote_host();
  setup.lease_table = lease_table;
  setup.regions = link->regions;
  std::string reasons;
  for (const auto& provider : providers_) {
    const auto& offered = session.metadata().providers;
    const auto offer = std::find_if(offered.begin(), offered.end(),
                                    [&](const auto& entry) { return entry.first == provider->name(); });
    std::string why = "not offered by the peer";
    std::shared_ptr<Channel> channel;
    if (offer != offered.end()) {
      setup.advertisement = offer->second;
      channel = provider->open(setup, &why);
    }
    if (channel) {
      channel->set_peer_regions(link->regions);
      link->channels.push_back(std::move(channel));
    } else {
      reasons += detail::concat(reasons.empty() ? "" : "; ", provider->name(), ": ", why);
    }
  }
  NXL_CHECK(!link->channels.empty(), kInvalid, "providers: none reaches ", session.name(), " from ", config_.name, " (",
            reasons, ")");
  if (!reasons.empty()) NXL_LOG(kDebug, "kv agent ", config_.name, ": ", session.label(), " not by ", reasons);

  std::shared_ptr<const DescribedKv> local;
  {
    const Lock lock(mutex_);
    local = local_kv_;
    const auto series = [&](const char* provider) {
      return std::array{&metrics_.transfers(link->peer_name, provider, TransferKind::kRead),
                        &metrics_.transfers(link->peer_name, provider, TransferKind::kWrite),
                        &metrics_.transfers(link->peer_name, provider, TransferKind::kServe)};
    };
    for (const auto& channel : link->channels) link->counters.push_back(series(channel->provider()));
    link->counters.push_back(series("peer"));
  }
  make_plans(*link, session, local);
  return link;
}

void AgentCore::make_plans(Link& link, const Session& session, std::shared_ptr<const DescribedKv> local) {
  std::shared_ptr<const DescribedKv> remote;
  if (session.metadata().layout) {
    remote = checked_remote(*session.metadata().layout, *session.regions(), session.name());
  }
  std::shared_ptr<const Plan> read;
  std::shared_ptr<const Plan> write;
  if (remote && local) {
    read = std::make_shared<Plan>(Plan::make(remote->layout, local->layout));
    write = std::make_shared<Plan>(Plan::make(local->layout, remote->layout));
  }
  const Lock lock(mutex_);
  link.remote_kv = std::move(remote);
  link.local_kv = std::move(local);
  link.read_plan = std::move(read);
  link.write_plan = std::move(write);
}

void AgentCore::on_layout(Session& session) {
  const auto link = link_of(session);
  std::shared_ptr<const DescribedKv> local;
  {
    const Lock lock(mutex_);
    local = local_kv_;
  }
  make_plans(*link, session, std::move(local));
}

void AgentCore::replan_all() {
  std::shared_ptr<const DescribedKv> local;
  {
    const Lock lock(mutex_);
    local = local_kv_;
  }
  std::vector<std::shared_ptr<Session>> open;
  for (const auto& [key, session] : sessions_) {
    if (session->state() == Session::State::kMetadata || session->state() == Session::State::kUp) {
      open.push_back(session);
    }
  }
  for (const auto& session : open) {
    session->sync_regions();
    session->send(FrameType::kLayout, LayoutMessage{local->layout, local->regions}.encode());
    const auto link = link_of(*session);
    if (!link) continue;  // it plans when the peer's metadata is whole
    try {
      make_plans(*link, *session, local);
    } catch (const Error& error) {
      session->end(error.what(), false);
    }
  }
}

void AgentCore::on_regions(Session& session) {
  const auto link = link_of(session);
  for (const auto& channel : link->channels) channel->set_peer_regions(session.regions());
  const Lock lock(mutex_);
  link->regions = session.regions();
}

}  // namespace nxl::kv
