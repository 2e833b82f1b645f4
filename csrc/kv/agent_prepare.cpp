// SPDX-License-Identifier: Apache-2.0
// Making transfers: everything that can be wrong with one is found here, before a byte moves.
#include <algorithm>

#include "core/error.h"
#include "kv/agent_core.h"

namespace nxl::kv {
namespace {

// Replaces a layout's own region numbers by those of the agents.
void place(std::vector<Run>& runs, const std::vector<uint32_t>& sources, const std::vector<uint32_t>& targets) {
  for (Run& run : runs) {
    run.source_region = sources[run.source_region];
    run.target_region = targets[run.target_region];
  }
}

}  // namespace

TransferId AgentCore::prepare(TransferKind kind, PeerId peer, std::vector<Run> runs, const LeaseTicket* lease) {
  const Time began = Clock::now();
  auto transfer = std::make_shared<Transfer>();
  std::shared_ptr<const RemoteRegionMap> remote;
  {
    const Lock lock(mutex_);
    transfer->link = link_up(peer);
    remote = transfer->link->regions;
  }
  transfer->kind = kind;
  if (lease != nullptr) transfer->lease = *lease;
  std::vector<uint32_t> remote_used;
  transfer->bytes = check_runs(runs, *regions_.snapshot(), *remote, kind == TransferKind::kRead,
                               transfer->link->peer_name, transfer->local_regions, remote_used);
  transfer->runs = std::move(runs);
  transfer->options.finish_lease = false;
  choose_channel(*transfer, remote_used, *remote);
  return keep(std::move(transfer), began);
}

TransferId AgentCore::prepare_kv(TransferKind kind, PeerId peer, const LeaseTicket* lease, TokenRange tokens,
                                 const BlockList& remote_blocks, const BlockList& local_blocks,
                                 const KvReadOptions& options) {
  const Time began = Clock::now();
  auto transfer = std::make_shared<Transfer>();
  std::shared_ptr<const RemoteRegionMap> regions;
  std::shared_ptr<const DescribedKv> remote, local;
  std::shared_ptr<const Plan> plan;
  const bool reads = kind == TransferKind::kRead;
  {
    const Lock lock(mutex_);
    transfer->link = link_up(peer);
    const Link& link = *transfer->link;
    regions = link.regions;
    remote = link.remote_kv;
    local = link.local_kv;
    plan = reads ? link.read_plan : link.write_plan;
    transfer->runs = take_runs();
  }
  NXL_CHECK(local, kInvalid, "describe_kv was not called on ", config_.name);
  NXL_CHECK(remote, kInvalid, transfer->link->peer_name, " has described no KV layout");
  transfer->kind = kind;
  if (lease != nullptr) transfer->lease = *lease;
  transfer->options = options;
  transfer->tokens = tokens;
  const BlockList& source = reads ? remote_blocks : local_blocks;
  const BlockList& target = reads ? local_blocks : remote_blocks;
  plan->apply(tokens, source, target, transfer->runs, &transfer->shares);
  if (reads && options.zero_tail) {
    plan->tail(tokens, target, transfer->tail);
    place(transfer->tail, local->regions, local->regions);
  }
  place(transfer->runs, reads ? remote->regions : local->regions, reads ? local->regions : remote->regions);
  if (!transfer->shares.empty()) transfer->bytes = transfer->shares.back().end_byte;
  transfer->local_regions = local->regions;
  std::sort(transfer->local_regions.begin(), transfer->local_regions.end());
  const auto end = std::unique(transfer->local_regions.begin(), transfer->local_regions.end());
  transfer->local_regions.erase(end, transfer->local_regions.end());
  // The plan has proved every offset against region_bytes; that the regions are still there is not its business.
  for (const uint32_t index : remote->regions) {
    const auto it = regions->find(index);
    NXL_CHECK(it != regions->end(), kInvalid, transfer->link->peer_name, " has withdrawn region ", index,
              " of its KV layout");
    NXL_CHECK(reads ? it->second->readable : it->second->writable, kInvalid, "region ", index, " of ",
              transfer->link->peer_name, " may not be ", reads ? "read" : "written");
  }
  choose_channel(*transfer, remote->regions, *regions);
  return keep(std::move(transfer), began);
}

void AgentCore::choose_channel(Transfer& transfer, std::span<const uint32_t> remote_regions,
                               const RemoteRegionMap& regions) {
  const Link& link = *transfer.link;
  if (transfer.kind == TransferKind::kWrite) {
    transfer.channel_index = link.channels.size();
    NXL_CHECK(transfer.runs.size() <= kMaxWriteRuns, kInvalid, "WRITE of ", transfer.runs.size(),
              " runs, the limit is ", kMaxWriteRuns, "; split it");
    return;
  }
  for (size_t i = 0; i < link.channels.size(); ++i) {
    const auto& channel = link.channels[i];
    const bool all = std::all_of(remote_regions.begin(), remote_regions.end(), [&](uint32_t index) {
      const auto it = regions.find(index);
      return it != regions.end() && channel->reaches(*it->second);
    });
    if (!all) continue;
    transfer.channel = channel;
    transfer.channel_index = i;
    return;
  }
  throw_error(ErrorKind::kUnsupported,
              detail::concat("no provider reaches all regions of this transfer at ", link.peer_name,
                             "; it is reached by ", link.channels.front()->provider(), " and ",
                             link.channels.size() - 1, " more: allow cma or tcp on both agents"));
}

std::vector<Run> AgentCore::take_runs() {
  if (spare_runs_.empty()) return {};
  std::vector<Run> runs = std::move(spare_runs_.back());
  spare_runs_.pop_back();
  return runs;
}

void AgentCore::give_back_runs(std::vector<Run>&& runs) {
  constexpr size_t kKept = 4, kWorthKeeping = 1024, kMostRuns = 1 << 15;  // at most 8 MB an agent
  if (spare_runs_.size() >= kKept || runs.capacity() < kWorthKeeping || runs.capacity() > kMostRuns) return;
  runs.clear();
  spare_runs_.push_back(std::move(runs));
}

TransferId AgentCore::keep(TransferPtr transfer, Time began) {
  NXL_CHECK(transfer->bytes <= config_.max_bytes_in_flight, kInvalid, "transfer of ", transfer->bytes,
            " bytes, max_bytes_in_flight is ", config_.max_bytes_in_flight);
  NXL_CHECK(regions_.pin(transfer->local_regions), kInvalid, "a local region of the transfer was deregistered");
  const Lock lock(mutex_);
  if (closed_ || transfers_.size() >= config_.max_transfers) {
    regions_.unpin(transfer->local_regions);
    check_open();
    throw_error(ErrorKind::kUnavailable,
                detail::concat("max_transfers is ", config_.max_transfers, "; release finished transfers or raise it"));
  }
  transfer->id = next_transfer_++;
  transfer->plan_us = microseconds(Clock::now() - began);
  const TransferId id = transfer->id;
  transfers_.emplace(id, std::move(transfer));
  return id;
}

}  // namespace nxl::kv
