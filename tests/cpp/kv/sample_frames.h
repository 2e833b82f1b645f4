// SPDX-License-Identifier: Apache-2.0
// One well-formed body of every frame type, for the tests and the fuzz target of the parser.
#pragma once

#include <utility>
#include <vector>

#include "core/error.h"
#include "kv/messages.h"

namespace nxl::kv::test {

inline KvLayout sample_layout() {
  KvLayout layout;
  layout.dtype = "bfloat16";
  layout.element_bytes = 2;
  layout.head_dim = 8;
  layout.total_heads = 2;
  layout.total_layers = 2;
  layout.layer_count = 2;
  layout.block_tokens = 4;
  layout.block_count = 16;
  const uint64_t head = 16, token = head * 2, block = token * 4, slot = block * 16;
  for (uint64_t i = 0; i < 4; ++i) layout.slots.push_back({0, i * slot, block, token, head});
  layout.region_bytes = {slot * 4};
  return layout;
}

inline std::vector<std::pair<FrameType, Body>> sample_bodies() {
  HelloMessage hello{"decode-0", {1, 2}, {}, true, Secret{}};
  hello.nonce[3] = 7;
  MetadataMessage metadata;
  metadata.providers = {{"shm", ""}, {"tcp", "port"}};
  metadata.lease_table_address = 4096;
  metadata.lease_table_bytes = 8192;
  metadata.region_count = 2;
  metadata.layout = LayoutMessage{sample_layout(), {3}};
  RegionsMessage regions;
  regions.joined = {{0, {1, 2}, 4096, 64, "kv", -1, true, false, true, 16},
                    {1, {3, 4}, 8192, 32, "", 3, false, true, false, 0}};
  regions.left = {4, 5};
  WriteRequestMessage request{9, 1000, {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 0, 0, 64, 0, 0, 1}}, {{1, {5, 6}}}, "done"};
  return {
      {FrameType::kHello, hello.encode()},
      {FrameType::kProof, ProofMessage{Secret{}}.encode()},
      {FrameType::kRefuse, ReasonMessage{"no", true}.encode()},
      {FrameType::kMetadata, metadata.encode()},
      {FrameType::kRegions, regions.encode()},
      {FrameType::kLayout, metadata.layout->encode()},
      {FrameType::kNotify, NotifyMessage{1, NotifyKind::kLeaseFinished, LeaseFinished{1, {2, 3}}.encode()}.encode()},
      {FrameType::kNotifyAck, NumberMessage{4}.encode()},
      {FrameType::kWriteRequest, request.encode()},
      {FrameType::kWriteStatus, WriteStatusMessage{9, WriteState::kFailed, Cause::kRefused, "why", 3}.encode()}};
}

inline Body decode_and_encode(FrameType type, BodyView body) {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kChallenge:
      return HelloMessage::decode(body).encode();
    case FrameType::kProof:
      return ProofMessage::decode(body).encode();
    case FrameType::kRefuse:
    case FrameType::kGoAway:
      return ReasonMessage::decode(body).encode();
    case FrameType::kMetadata: {
      const MetadataMessage message = MetadataMessage::decode(body);
      if (message.layout) {
        // What a handshake does with it next: prove it, or throw.
        try {
          message.layout->layout.validate("peer");
        } catch (const Error&) {
        }
      }
      return message.encode();
    }
    case FrameType::kRegions:
      return RegionsMessage::decode(body).encode();
    case FrameType::kLayout:
      return LayoutMessage::decode(body).encode();
    case FrameType::kNotify: {
      const NotifyMessage message = NotifyMessage::decode(body);
      if (message.kind == NotifyKind::kLeaseFinished) LeaseFinished::decode(message.payload);
      return message.encode();
    }
    case FrameType::kWriteRequest:
      return WriteRequestMessage::decode(body).encode();
    case FrameType::kWriteStatus:
      return WriteStatusMessage::decode(body).encode();
    default:
      return NumberMessage::decode(body).encode();
  }
}

}  // namespace nxl::kv::test
