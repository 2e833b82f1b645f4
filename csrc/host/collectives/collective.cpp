// SPDX-License-Identifier: Apache-2.0
// Collectives as rounds of pieces: what is sent to whom, and what is made of what comes.
//
// Note "Direct or in two steps". In the direct form every member reads all of every other's data and reduces it itself:
// one round, best for two members and for what is small. In two steps each member reduces one piece and passes the
// result on, so it reads 2 (n - 1) / n times the data, whatever n is. Both reduce in the order of the group.
#include "host/collectives/collective.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/error.h"

namespace nxl::host {
namespace {

enum Op : uint32_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kBarrier };

constexpr size_t kDirectBytes = 64 << 10;

int position_of(std::string_view op) {
  const auto names = collective_names();
  const auto found = std::find(names.begin(), names.end(), op);
  return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

size_t elements_of(const Value& value) {
  size_t elements = 1;
  for (const int64_t extent : value.shape) elements *= static_cast<size_t>(extent);  // checked by the parser
  return elements;
}

std::vector<uint32_t> group_with(const Json& groups, uint32_t rank, uint32_t count, const std::string& what) {
  std::vector<uint32_t> found;
  std::vector<bool> seen(count);
  for (const Json& entry : groups.as_array(what)) {
    std::vector<uint32_t> members;
    for (const int64_t member : entry.as_ints(what)) {
      NXL_CHECK(member >= 0 && member < static_cast<int64_t>(count), kInvalid, what, ": replica ", member, " of ",
                count);
      NXL_CHECK(!seen[static_cast<size_t>(member)], kInvalid, what, ": replica ", member, " is named twice");
      seen[static_cast<size_t>(member)] = true;
      members.push_back(static_cast<uint32_t>(member));
    }
    if (std::find(members.begin(), members.end(), rank) != members.end()) found = std::move(members);
  }
  NXL_CHECK(!found.empty(), kInvalid, what, ": rank ", rank, " is in no group; this NEFF is for other ranks");
  return found;
}

}  // namespace

bool is_collective(std::string_view op) { return position_of(op) >= 0; }

std::span<const char* const> collective_names() { return std::span(kCollectiveNames).first(kBarrier); }

uint32_t replicas_of(const Program& program) {
  uint64_t replicas = 0;
  for (const Step& step : program.steps) {
    if (!is_collective(step.op)) continue;
    const uint64_t stated = step.attributes.at("replicas").as_size("replicas");
    NXL_CHECK(stated > 0 && stated <= kMaxRanks, kInvalid, step.op, " states ", stated, " replicas, 1 to ", kMaxRanks,
              " are possible");
    NXL_CHECK(replicas == 0 || replicas == stated, kInvalid, "collectives of ", replicas, " and of ", stated,
              " replicas are in one program");
    replicas = stated;
  }
  return static_cast<uint32_t>(replicas);
}

Collective::Collective(const Program& program, size_t step_number, std::shared_ptr<World> world)
    : world_(std::move(world)) {
  const Step& step = program.steps[step_number];
  const std::string what = nxl::detail::concat("step ", step_number, " (", step.op, ")");
  NXL_CHECK(world_ != nullptr, kInvalid, what, " is a collective: load this NEFF with nrt_load_collectives");
  const int op = position_of(step.op);
  NXL_CHECK(op >= 0, kInternal, what, " is no collective");
  NXL_CHECK(step.inputs.size() == 1 && step.outputs.size() == 1, kInvalid, what, " has ", step.inputs.size(),
            " inputs and ", step.outputs.size(), " outputs, wants one of each");
  const Value& in = program.values[step.inputs[0]];
  const Value& out = program.values[step.outputs[0]];
  NXL_CHECK(in.dtype == out.dtype, kInvalid, what, " makes ", dtype_name(out.dtype), " of ", dtype_name(in.dtype));
  members_ = group_with(step.attributes.at("groups"), world_->rank(), world_->count(), what + " groups");
  element_bytes_ = dtype_size(in.dtype);
  in_elements_ = elements_of(in);
  out_elements_ = elements_of(out);

  const size_t n = members_.size();
  const size_t wanted_in = op == kReduceScatter ? out_elements_ * n
                           : op == kAllGather   ? out_elements_ / n
                                                : out_elements_;
  NXL_CHECK(in_elements_ == wanted_in && (op != kAllGather || out_elements_ % n == 0) &&
                (op != kAllToAll || in_elements_ % n == 0),
            kInvalid, what, ": ", in_elements_, " elements in and ", out_elements_, " out do not fit a group of ", n);
  uint32_t detail = static_cast<uint32_t>(in.dtype);
  if (op == kAllReduce || op == kReduceScatter) {
    const std::string& kind = step.attributes.at("kind").as_string(what + " kind");
    reduction_ = find_reduction(in.dtype, kind);
    NXL_CHECK(reduction_ != nullptr, kInvalid, what, ": there is no '", kind, "' of ", dtype_name(in.dtype));
    for (const char letter : kind) detail = detail * 31 + static_cast<unsigned char>(letter);
  }
  if (op == kBroadcast) {
    const uint32_t root = members_[0];
    // One group for every root: the order of members only says who sends.
    std::sort(members_.begin(), members_.end());
    root_ = static_cast<int>(std::find(members_.begin(), members_.end(), root) - members_.begin());
    detail += static_cast<uint32_t>(root) << 8;
  }
  signature_ = {static_cast<uint32_t>(op), detail, in_elements_ * element_bytes_};
}

void Collective::run(const std::byte* in, std::byte* out) {
  if (members_.size() == 1) {
    std::memcpy(out, in, in_elements_ * element_bytes_);
    return;
  }
  if (!group_) group_ = world_->group(members_, "compute");
  const auto lock = group_->lock();
  switch (signature_.op) {
    case kAllReduce:
      return all_reduce(*group_, in, out);
    case kAllGather:
      return all_gather(*group_, in, out);
    case kReduceScatter:
      return reduce_scatter(*group_, in, out);
    case kAllToAll:
      return all_to_all(*group_, in, out);
    default:
      return broadcast(*group_, in, out);
  }
}

void Collective::all_reduce(Group& group, const std::byte* in, std::byte* out) const {
  const size_t n = group.size();
  const size_t width = element_bytes_;
  size_t left = in_elements_;
  if (n > 2 && left * width > kDirectBytes) {
    const size_t most = group.round_bytes() / n / width;
    while (left * width > kDirectBytes) {
      const size_t piece = std::min(most, left / n);
      const size_t bytes = piece * width;
      std::byte* mine = out + group.me() * bytes;
      group.round(signature_, {in, bytes, true, bytes, -1},
                  [&](const std::byte* const* from) { reduction_(mine, from, n, piece); });
      group.round(signature_, {mine, bytes}, [&](const std::byte* const* from) {
        for (size_t i = 0; i < n; ++i) {
          if (i != group.me()) std::memcpy(out + i * bytes, from[i], bytes);
        }
      });
      in += n * bytes;
      out += n * bytes;
      left -= n * piece;
    }
  }
  all_reduce_directly(group, in, out, left);
}

void Collective::all_reduce_directly(Group& group, const std::byte* in, std::byte* out, size_t elements) const {
  const size_t most = group.round_bytes() / element_bytes_;
  for (size_t begin = 0; begin < elements; begin += most) {
    const size_t count = std::min(most, elements - begin);
    const size_t offset = begin * element_bytes_;
    group.round(signature_, {in + offset, count * element_bytes_},
                [&](const std::byte* const* from) { reduction_(out + offset, from, group.size(), count); });
  }
}

void Collective::all_gather(Group& group, const std::byte* in, std::byte* out) const {
  const size_t whole = in_elements_ * element_bytes_;
  for (size_t begin = 0; begin < whole; begin += group.round_bytes()) {
    const size_t bytes = std::min(group.round_bytes(), whole - begin);
    group.round(signature_, {in + begin, bytes}, [&](const std::byte* const* from) {
      for (size_t i = 0; i < group.size(); ++i) std::memcpy(out + i * whole + begin, from[i], bytes);
    });
  }
}

void Collective::reduce_scatter(Group& group, const std::byte* in, std::byte* out) const {
  const size_t whole = out_elements_ * element_bytes_;
  const size_t most = group.round_bytes() / group.size() / element_bytes_;
  for (size_t begin = 0; begin < out_elements_; begin += most) {
    const size_t count = std::min(most, out_elements_ - begin);
    const size_t offset = begin * element_bytes_;
    group.round(signature_, {in + offset, count * element_bytes_, true, whole, -1},
                [&](const std::byte* const* from) { reduction_(out + offset, from, group.size(), count); });
  }
}

void Collective::all_to_all(Group& group, const std::byte* in, std::byte* out) const {
  const size_t n = group.size();
  const size_t whole = in_elements_ / n * element_bytes_;
  const size_t most = group.round_bytes() / n;
  for (size_t begin = 0; begin < whole; begin += most) {
    const size_t bytes = std::min(most, whole - begin);
    group.round(signature_, {in + begin, bytes, true, whole, -1}, [&](const std::byte* const* from) {
      for (size_t i = 0; i < n; ++i) std::memcpy(out + i * whole + begin, from[i], bytes);
    });
  }
}

void Collective::broadcast(Group& group, const std::byte* in, std::byte* out) const {
  const size_t whole = in_elements_ * element_bytes_;
  for (size_t begin = 0; begin < whole; begin += group.round_bytes()) {
    const size_t bytes = std::min(group.round_bytes(), whole - begin);
    group.round(signature_, {in + begin, bytes, false, 0, root_},
                [&](const std::byte* const* from) { std::memcpy(out + begin, from[root_], bytes); });
  }
}

void wait_for_all(World& world) {
  if (world.count() == 1) return;
  std::vector<uint32_t> everyone(world.count());
  for (uint32_t rank = 0; rank < world.count(); ++rank) everyone[rank] = rank;
  const auto group = world.group(everyone, "barrier");
  const auto lock = group->lock();
  group->round({kBarrier, 0, 0}, {}, {});
}

}  // namespace nxl::host
