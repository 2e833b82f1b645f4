// SPDX-License-Identifier: Apache-2.0
// The handshake: HELLO, CHALLENGE, PROOF, then METADATA, REGIONS and READY both ways.
#include <unistd.h>

#include <algorithm>

#include "core/error.h"
#include "kv/session.h"

namespace nxl::kv {
namespace {

constexpr size_t kMaxRemoteRegions = 1 << 16;

const char* const kNoKeyHere = "key_file: the peer has a pre-shared key and this agent has none";
const char* const kNoKeyThere = "key_file: this agent has a pre-shared key and the peer has none";
const char* const kWrongKey = "key_file: the pre-shared keys of the two agents differ";

}  // namespace

void Session::on_hello(const Frame& frame) {
  NXL_CHECK(!initiator_ && state_ == State::kHello, kInvalid, "HELLO out of turn");
  const HelloMessage hello = HelloMessage::decode(frame.body);
  NXL_CHECK(hello.has_key || config_.key.empty(), kInvalid, kNoKeyThere);
  NXL_CHECK(!hello.has_key || !config_.key.empty(), kInvalid, kNoKeyHere);
  if (unix_socket_) pid_ = peer_credentials(socket_.get()).pid;
  name_ = hello.name;
  incarnation_ = hello.incarnation;
  number_ = random_id();
  transcript_.connector = hello.name;
  transcript_.acceptor = config_.name;
  transcript_.connector_incarnation = hello.incarnation;
  transcript_.acceptor_incarnation = config_.incarnation;
  transcript_.connector_nonce = hello.nonce;
  transcript_.session = number_;
  random_bytes(std::as_writable_bytes(std::span(transcript_.acceptor_nonce)));
  HelloMessage challenge{config_.name, config_.incarnation, transcript_.acceptor_nonce, !config_.key.empty(), {}};
  if (!config_.key.empty()) challenge.proof = transcript_.derive(config_.key, "acceptor");
  state_ = State::kProof;
  send(FrameType::kChallenge, challenge.encode());
  flush();
}

void Session::on_challenge(const Frame& frame) {
  NXL_CHECK(initiator_ && state_ == State::kHello, kInvalid, "CHALLENGE out of turn");
  const HelloMessage challenge = HelloMessage::decode(frame.body);
  NXL_CHECK(challenge.has_key || config_.key.empty(), kInvalid, kNoKeyThere);
  NXL_CHECK(!challenge.has_key || !config_.key.empty(), kInvalid, kNoKeyHere);
  name_ = challenge.name;
  incarnation_ = challenge.incarnation;
  number_ = frame.header.session;
  NXL_CHECK(number_ != 0, kInvalid, "CHALLENGE without a session number");
  transcript_.connector = config_.name;
  transcript_.acceptor = challenge.name;
  transcript_.connector_incarnation = config_.incarnation;
  transcript_.acceptor_incarnation = challenge.incarnation;
  transcript_.acceptor_nonce = challenge.nonce;
  transcript_.session = number_;
  ProofMessage proof;
  if (!config_.key.empty()) {
    NXL_CHECK(challenge.proof && equal_in_constant_time(*challenge.proof, transcript_.derive(config_.key, "acceptor")),
              kInvalid, kWrongKey);
    proof.proof = transcript_.derive(config_.key, "connector");
  }
  host_.on_proved(*this);
  send(FrameType::kProof, proof.encode());
  if (flush()) begin_metadata();
}

void Session::on_proof(const Frame& frame) {
  NXL_CHECK(!initiator_ && state_ == State::kProof, kInvalid, "PROOF out of turn");
  const ProofMessage proof = ProofMessage::decode(frame.body);
  if (!config_.key.empty()) {
    NXL_CHECK(proof.proof && equal_in_constant_time(*proof.proof, transcript_.derive(config_.key, "connector")),
              kInvalid, kWrongKey);
  }
  host_.on_proved(*this);
  begin_metadata();
}

void Session::begin_metadata() {
  state_ = State::kMetadata;
  handshake_until_ = std::chrono::steady_clock::now() + 2 * config_.handshake;
  frame_secret_ = transcript_.derive(config_.key, "frames");
  data_secret_ = transcript_.derive(config_.key, "data");
  authenticated_ = !config_.key.empty();
  parser_.set_body_limit(kMaxBodyBytes);
  int lease_descriptor = -1;
  MetadataMessage mine = host_.local_metadata(&lease_descriptor);
  const auto regions = host_.local_regions();
  mine.region_count = regions->size();
  Outgoing out{FrameType::kMetadata, mine.encode(), {}, nullptr};
  if (unix_socket_ && lease_descriptor >= 0) out.fds.push_back(lease_descriptor);
  send_with(std::move(out));
  sync_regions(regions);
}

void Session::sync_regions(const std::shared_ptr<const RegionMap>& regions) {
  if (state_ != State::kMetadata && state_ != State::kUp) return;
  RegionsMessage message;
  std::vector<int> fds;
  const auto emit = [&] {
    if (message.joined.empty() && message.left.empty()) return;
    send_with({FrameType::kRegions, message.encode(), std::move(fds), regions});
    message = {};
    fds = {};
  };
  for (auto it = sent_regions_.begin(); it != sent_regions_.end();) {
    if (regions->contains(*it)) {
      ++it;
    } else {
      message.left.push_back(*it);
      it = sent_regions_.erase(it);
    }
  }
  for (const auto& [index, region] : *regions) {
    if (!sent_regions_.insert(index).second) continue;
    const RegionDescription& d = region->description;
    const bool has_descriptor = unix_socket_ && region->exported && d.readable;
    message.joined.push_back({index, region->key, reinterpret_cast<uint64_t>(d.address), d.bytes, d.name, d.core,
                              d.readable, d.writable, has_descriptor, region->exported_offset});
    if (has_descriptor) fds.push_back(region->exported.get());
    if (message.joined.size() >= kMaxFrameDescriptors) emit();
  }
  emit();
}

std::shared_ptr<const UniqueFd> Session::take_descriptor() {
  NXL_CHECK(!descriptors_.empty(), kInvalid, "a frame names more descriptors than came with it");
  auto fd = descriptors_.front();
  descriptors_.pop_front();
  return fd;
}

void Session::on_metadata(const Frame& frame) {
  NXL_CHECK(state_ == State::kMetadata && !has_metadata_, kInvalid, "METADATA out of turn");
  metadata_ = MetadataMessage::decode(frame.body);
  NXL_CHECK(metadata_.region_count <= kMaxRemoteRegions, kInvalid, "the peer has ", metadata_.region_count,
            " regions, the limit is ", kMaxRemoteRegions);
  NXL_CHECK(frame.header.descriptors <= 1, kInvalid, "METADATA with ", frame.header.descriptors, " descriptors");
  if (frame.header.descriptors == 1) lease_fd_ = take_descriptor();
  has_metadata_ = true;
  check_metadata_complete();
}

void Session::on_regions_frame(const Frame& frame) {
  NXL_CHECK(has_metadata_, kInvalid, "REGIONS out of turn");
  const RegionsMessage message = RegionsMessage::decode(frame.body);
  auto regions = std::make_shared<RemoteRegionMap>(*regions_);
  for (const uint32_t index : message.left) regions->erase(index);
  uint32_t taken = 0;
  for (const RegionEntry& entry : message.joined) {
    auto region = std::make_shared<RemoteRegion>();
    region->index = entry.index;
    region->key = entry.key;
    region->address = entry.address;
    region->bytes = entry.bytes;
    region->name = entry.name;
    region->core = entry.core;
    region->readable = entry.readable;
    region->writable = entry.writable;
    region->fd_offset = entry.descriptor_offset;
    if (entry.has_descriptor) {
      NXL_CHECK(taken < frame.header.descriptors, kInvalid, "REGIONS names more descriptors than came with it");
      region->fd = take_descriptor();
      ++taken;
    }
    NXL_CHECK(regions->emplace(entry.index, std::move(region)).second, kInvalid, "region ", entry.index,
              " joins twice");
  }
  NXL_CHECK(taken == frame.header.descriptors, kInvalid, "REGIONS came with ", frame.header.descriptors,
            " descriptors and names ", taken);
  NXL_CHECK(regions->size() <= kMaxRemoteRegions, kInvalid, "the peer has ", regions->size(), " regions, the limit is ",
            kMaxRemoteRegions);
  regions_ = std::move(regions);
  if (metadata_accepted_) {
    host_.on_regions(*this);
  } else {
    check_metadata_complete();
  }
}

void Session::on_layout_frame(const Frame& frame) {
  NXL_CHECK(has_metadata_, kInvalid, "LAYOUT out of turn");
  metadata_.layout = LayoutMessage::decode(frame.body);
  if (metadata_accepted_) host_.on_layout(*this);
}

void Session::check_metadata_complete() {
  if (metadata_accepted_ || regions_->size() < metadata_.region_count) return;
  host_.on_metadata(*this);
  metadata_accepted_ = true;
  send(FrameType::kReady, {});
  maybe_up();
}

void Session::maybe_up() {
  if (!metadata_accepted_ || !peer_ready_ || state_ != State::kMetadata) return;
  state_ = State::kUp;
  host_.on_up(*this);
}

}  // namespace nxl::kv
