// SPDX-License-Identifier: Apache-2.0
// The bodies of control frames as structures. decode() throws Error(kInvalid) for anything that is not well-formed;
// whether what it says is true (a region exists, a lease is ours) is for the reader of the structure to check.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/api.h"
#include "kv/auth.h"
#include "kv/layout.h"
#include "kv/plan.h"
#include "kv/provider.h"
#include "kv/wire.h"

namespace nxl::kv {

using Body = std::vector<std::byte>;
using BodyView = std::span<const std::byte>;

inline constexpr size_t kMaxName = 255;
inline constexpr size_t kMaxText = 1024;  // of refusals and failures
inline constexpr size_t kMaxAdvertisement = 1024;
inline constexpr size_t kMaxProviders = 16;
inline constexpr size_t kMaxNotification = 1 << 20;
inline constexpr size_t kRunBytes = 56;  // on the wire
inline constexpr size_t kMaxWriteRuns = (kMaxBodyBytes - (2 << 20)) / kRunBytes;

struct NXL_API HelloMessage {  // and the first half of CHALLENGE
  std::string name;
  Key incarnation{};
  Nonce nonce{};
  bool has_key = false;
  std::optional<Secret> proof;  // CHALLENGE of an acceptor with a key

  Body encode() const;
  static HelloMessage decode(BodyView body);
};

struct NXL_API ProofMessage {
  std::optional<Secret> proof;

  Body encode() const;
  static ProofMessage decode(BodyView body);
};

// REFUSE and GOAWAY. `final`: the other side should not come back by itself.
struct NXL_API ReasonMessage {
  std::string text;
  bool final = false;

  Body encode() const;
  static ReasonMessage decode(BodyView body);
};

struct NXL_API LayoutMessage {
  KvLayout layout;
  std::vector<uint32_t> regions;  // region index of each of the layout's regions

  Body encode() const;
  static LayoutMessage decode(BodyView body);
};

struct NXL_API MetadataMessage {
  std::vector<std::pair<std::string, std::string>> providers;  // name and advertisement, preferred first
  uint64_t lease_table_address = 0;
  uint64_t lease_table_bytes = 0;
  uint64_t region_count = 0;  // that follow in REGIONS frames
  std::optional<LayoutMessage> layout;

  Body encode() const;
  static MetadataMessage decode(BodyView body);
};

struct RegionEntry {
  uint32_t index = 0;
  Key key{};
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::string name;
  int core = -1;
  bool readable = false;
  bool writable = false;
  bool has_descriptor = false;  // one of the frame's, in order
  uint64_t descriptor_offset = 0;
};

struct NXL_API RegionsMessage {
  std::vector<RegionEntry> joined;
  std::vector<uint32_t> left;

  Body encode() const;
  static RegionsMessage decode(BodyView body);
};

enum class NotifyKind : uint8_t { kMessage, kLeaseFinished };

struct NXL_API NotifyMessage {
  uint64_t sequence = 0;  // of the sender's stream to this peer, from 1; not the frame's
  NotifyKind kind = NotifyKind::kMessage;
  std::string payload;

  Body encode() const;
  static NotifyMessage decode(BodyView body);
};

// The payload of kLeaseFinished.
struct NXL_API LeaseFinished {
  uint64_t lease = 0;
  Key key{};

  std::string encode() const;
  static LeaseFinished decode(const std::string& payload);
};

// NOTIFY_ACK (everything up to `value` arrived), WRITE_QUERY and WRITE_CANCEL (transfer `value`), PING and PONG.
struct NXL_API NumberMessage {
  uint64_t value = 0;

  Body encode() const;
  static NumberMessage decode(BodyView body);
};

struct NXL_API WriteRequestMessage {
  uint64_t transfer = 0;
  uint64_t deadline_ms = 0;  // what is left of it: durations travel, times never
  std::vector<Run> runs;
  std::vector<std::pair<uint32_t, Key>> target_keys;  // of every target region the runs name
  std::string notification;
  // A word of the initiator's lease table and what it holds until the initiator closes; 0 as generation: none.
  uint64_t life_word = 0, life_generation = 0;

  Body encode() const;
  static WriteRequestMessage decode(BodyView body);
};

enum class WriteState : uint8_t { kUnknown, kActive, kDone, kFailed };

struct NXL_API WriteStatusMessage {
  uint64_t transfer = 0;
  WriteState state = WriteState::kUnknown;
  Cause cause = Cause::kNone;
  std::string message;
  uint64_t bytes = 0;
  uint64_t in_place = 0;  // of a failed one: so many of the request's bytes, from its first run on, are in place
  uint64_t took_us = 0;   // from the request to the result

  Body encode() const;
  static WriteStatusMessage decode(BodyView body);
};

}  // namespace nxl::kv
