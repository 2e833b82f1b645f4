// SPDX-License-Identifier: Apache-2.0
// Bodies of control frames: one tag list a message, critical where a reader must not overlook the field.
#include "kv/messages.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace nxl::kv {
namespace {

constexpr size_t kMaxSlots = 1 << 16;
constexpr size_t kMaxRegionsInFrame = 1 << 16;

template <size_t N, typename T>
std::span<const std::byte> raw(const std::array<T, N>& value) {
  return std::as_bytes(std::span(value));
}

template <typename Value>
Value fixed(const Field& field) {
  Value value{};
  field.copy_to(std::as_writable_bytes(std::span(value)));
  return value;
}

bool flag(const Field& field) { return field.number() != 0; }

// An enumeration from the wire; `last` is its greatest value.
template <typename Enum>
Enum enumerated(const Field& field, Enum last) {
  const uint64_t value = field.number();
  NXL_CHECK(value <= static_cast<uint64_t>(last), kInvalid, "field ", field.tag & ~kCritical, " is ", value,
            ", the greatest known value is ", static_cast<uint64_t>(last));
  return static_cast<Enum>(value);
}

// Calls `take(field)` for each; it returns false for a tag it does not know.
template <typename Take>
void each_field(BodyView body, Take take) {
  FieldReader reader(body);
  while (const auto field = reader.next()) {
    if (!take(*field)) FieldReader::unknown(*field);
  }
}

void require(bool present, const char* what) { NXL_CHECK(present, kInvalid, "a frame lacks its field ", what); }

constexpr uint16_t critical(uint16_t tag) { return static_cast<uint16_t>(tag | kCritical); }

}  // namespace

Body HelloMessage::encode() const {
  FieldWriter out;
  out.text(critical(1), name).bytes(critical(2), raw(incarnation)).bytes(critical(3), raw(nonce));
  out.number(critical(4), has_key ? 1 : 0);
  if (proof) out.bytes(critical(5), raw(*proof));
  return out.take();
}

HelloMessage HelloMessage::decode(BodyView body) {
  HelloMessage m;
  bool has_nonce = false;
  each_field(body, [&](const Field& f) {
    switch (f.tag) {
      case critical(1):
        m.name = f.text(kMaxName);
        return true;
      case critical(2):
        m.incarnation = fixed<Key>(f);
        return true;
      case critical(3):
        m.nonce = fixed<Nonce>(f);
        has_nonce = true;
        return true;
      case critical(4):
        m.has_key = flag(f);
        return true;
      case critical(5):
        m.proof = fixed<Secret>(f);
        return true;
      default:
        return false;
    }
  });
  require(!m.name.empty(), "name");
  require(m.incarnation != Key{}, "incarnation");
  require(has_nonce, "nonce");
  return m;
}

Body ProofMessage::encode() const {
  FieldWriter out;
  if (proof) out.bytes(critical(1), raw(*proof));
  return out.take();
}

ProofMessage ProofMessage::decode(BodyView body) {
  ProofMessage m;
  each_field(body, [&](const Field& f) {
    if (f.tag != critical(1)) return false;
    m.proof = fixed<Secret>(f);
    return true;
  });
  return m;
}

Body ReasonMessage::encode() const {
  FieldWriter out;
  out.text(1, std::string_view(text).substr(0, kMaxText)).number(2, final ? 1 : 0);
  return out.take();
}

ReasonMessage ReasonMessage::decode(BodyView body) {
  ReasonMessage m;
  each_field(body, [&](const Field& f) {
    switch (f.tag) {
      case 1:
        m.text = f.text(kMaxText);
        return true;
      case 2:
        m.final = flag(f);
        return true;
      default:
        return false;
    }
  });
  return m;
}

Body LayoutMessage::encode() const {
  PackedWriter slots;
  for (const KvSlot& s : layout.slots) {
    slots.u32(s.region).u64(s.offset).u64(s.block_stride).u64(s.token_stride).u64(s.head_stride);
  }
  PackedWriter places;
  for (size_t i = 0; i < layout.region_bytes.size(); ++i) places.u64(layout.region_bytes[i]).u32(regions[i]);
  FieldWriter out;
  out.text(critical(1), layout.dtype).number(critical(2), layout.element_bytes).number(critical(3), layout.head_dim);
  out.number(critical(4), layout.total_heads).number(critical(5), layout.parts);
  out.number(critical(6), layout.total_layers).number(critical(7), layout.first_layer);
  out.number(critical(8), layout.layer_count).number(critical(9), layout.tp_rank).number(critical(10), layout.tp_size);
  out.number(critical(11), layout.context_rank).number(critical(12), layout.context_size);
  out.number(critical(13), layout.context_interleave).number(critical(14), layout.block_tokens);
  out.number(critical(15), layout.block_count);
  out.bytes(critical(16), slots.bytes()).bytes(critical(17), places.bytes());
  return out.take();
}

LayoutMessage LayoutMessage::decode(BodyView body) {
  LayoutMessage m;
  KvLayout& l = m.layout;
  uint32_t* const kNumbers[] = {&l.element_bytes, &l.head_dim,     &l.total_heads,  &l.parts,
                                &l.total_layers,  &l.first_layer,  &l.layer_count,  &l.tp_rank,
                                &l.tp_size,       &l.context_rank, &l.context_size, &l.context_interleave,
                                &l.block_tokens,  &l.block_count};
  each_field(body, [&](const Field& f) {
    if (f.tag == critical(1)) {
      l.dtype = f.text(32);
    } else if (f.tag >= critical(2) && f.tag < critical(2 + std::size(kNumbers))) {
      *kNumbers[f.tag - critical(2)] = f.number32();
    } else if (f.tag == critical(16)) {
      PackedReader in(f.value);
      while (!in.at_end()) {
        NXL_CHECK(l.slots.size() < kMaxSlots, kInvalid, "KV layout with more than ", kMaxSlots, " slots");
        KvSlot s;
        s.region = in.u32();
        s.offset = in.u64();
        s.block_stride = in.u64();
        s.token_stride = in.u64();
        s.head_stride = in.u64();
        l.slots.push_back(s);
      }
    } else if (f.tag == critical(17)) {
      PackedReader in(f.value);
      while (!in.at_end()) {
        NXL_CHECK(m.regions.size() < kMaxRegionsInFrame, kInvalid, "KV layout with more than ", kMaxRegionsInFrame,
                  " regions");
        l.region_bytes.push_back(in.u64());
        m.regions.push_back(in.u32());
      }
    } else {
      return false;
    }
    return true;
  });
  return m;
}

Body MetadataMessage::encode() const {
  FieldWriter out;
  for (const auto& [name, advertisement] : providers) {
    PackedWriter entry;
    entry.text(name).text(advertisement);
    out.bytes(1, entry.bytes());
  }
  out.number(critical(2), lease_table_address).number(critical(3), lease_table_bytes);
  if (layout) out.bytes(critical(4), layout->encode());
  out.number(critical(5), region_count);
  return out.take();
}

MetadataMessage MetadataMessage::decode(BodyView body) {
  MetadataMessage m;
  each_field(body, [&](const Field& f) {
    switch (f.tag) {
      case 1: {
        NXL_CHECK(m.providers.size() < kMaxProviders, kInvalid, "more than ", kMaxProviders, " providers");
        PackedReader in(f.value);
        std::string name = in.text(kMaxName);
        m.providers.emplace_back(std::move(name), in.text(kMaxAdvertisement));
        return true;
      }
      case critical(2):
        m.lease_table_address = f.number();
        return true;
      case critical(3):
        m.lease_table_bytes = f.number();
        return true;
      case critical(4):
        m.layout = LayoutMessage::decode(f.value);
        return true;
      case critical(5):
        m.region_count = f.number();
        return true;
      default:
        return false;
    }
  });
  return m;
}

Body RegionsMessage::encode() const {
  FieldWriter out;
  for (const RegionEntry& r : joined) {
    PackedWriter entry;
    const uint32_t flags = (r.readable ? 1u : 0) | (r.writable ? 2u : 0) | (r.has_descriptor ? 4u : 0);
    entry.u32(r.index).u64(r.key[0]).u64(r.key[1]).u64(r.address).u64(r.bytes).text(r.name);
    entry.u32(static_cast<uint32_t>(r.core)).u32(flags).u64(r.descriptor_offset);
    out.bytes(critical(1), entry.bytes());
  }
  for (const uint32_t index : left) out.number(critical(2), index);
  return out.take();
}

RegionsMessage RegionsMessage::decode(BodyView body) {
  RegionsMessage m;
  each_field(body, [&](const Field& f) {
    if (f.tag == critical(1)) {
      NXL_CHECK(m.joined.size() < kMaxRegionsInFrame, kInvalid, "more than ", kMaxRegionsInFrame, " regions");
      PackedReader in(f.value);
      RegionEntry r;
      r.index = in.u32();
      r.key = {in.u64(), in.u64()};
      r.address = in.u64();
      r.bytes = in.u64();
      r.name = in.text(kMaxName);
      r.core = static_cast<int>(in.u32());
      const uint32_t flags = in.u32();
      NXL_CHECK(flags < 8, kInvalid, "region flags ", flags, " are unknown");
      r.readable = (flags & 1) != 0;
      r.writable = (flags & 2) != 0;
      r.has_descriptor = (flags & 4) != 0;
      r.descriptor_offset = in.u64();
      m.joined.push_back(std::move(r));
    } else if (f.tag == critical(2)) {
      NXL_CHECK(m.left.size() < kMaxRegionsInFrame, kInvalid, "more than ", kMaxRegionsInFrame, " regions");
      m.left.push_back(f.number32());
    } else {
      return false;
    }
    return true;
  });
  return m;
}

Body NotifyMessage::encode() const {
  FieldWriter out;
  out.number(critical(1), sequence).number(critical(2), static_cast<uint64_t>(kind)).text(critical(3), payload);
  return out.take();
}

NotifyMessage NotifyMessage::decode(BodyView body) {
  NotifyMessage m;
  each_field(body, [&](const Field& f) {
    switch (f.tag) {
      case critical(1):
        m.sequence = f.number();
        return true;
      case critical(2):
        m.kind = enumerated(f, NotifyKind::kLeaseFinished);
        return true;
      case critical(3):
        m.payload = f.text(kMaxNotification);
        return true;
      default:
        return false;
    }
  });
  require(m.sequence != 0, "sequence");
  return m;
}

std::string LeaseFinished::encode() const {
  PackedWriter out;
  out.u64(lease).u64(key[0]).u64(key[1]);
  return {reinterpret_cast<const char*>(out.bytes().data()), out.bytes().size()};
}

LeaseFinished LeaseFinished::decode(const std::string& payload) {
  PackedReader in(std::as_bytes(std::span(payload.data(), payload.size())));
  LeaseFinished m;
  m.lease = in.u64();
  m.key = {in.u64(), in.u64()};
  NXL_CHECK(in.at_end(), kInvalid, "a finished lease is followed by ", in.left(), " bytes");
  return m;
}

Body NumberMessage::encode() const { return FieldWriter().number(critical(1), value).take(); }

NumberMessage NumberMessage::decode(BodyView body) {
  NumberMessage m;
  each_field(body, [&](const Field& f) {
    if (f.tag != critical(1)) return false;
    m.value = f.number();
    return true;
  });
  return m;
}

Body WriteRequestMessage::encode() const {
  PackedWriter table;
  for (const Run& r : runs) {
    table.u32(r.source_region).u32(r.target_region).u64(r.source_offset).u64(r.target_offset).u64(r.bytes);
    table.u64(r.source_stride).u64(r.target_stride).u64(r.count);
  }
  PackedWriter keys;
  for (const auto& [index, key] : target_keys) keys.u32(index).u64(key[0]).u64(key[1]);
  FieldWriter out;
  out.number(critical(1), transfer).number(critical(2), deadline_ms).bytes(critical(3), table.bytes());
  out.bytes(critical(4), keys.bytes());
  if (!notification.empty()) out.text(critical(5), notification);
  out.number(6, life_word).number(7, life_generation);
  return out.take();
}

WriteRequestMessage WriteRequestMessage::decode(BodyView body) {
  WriteRequestMessage m;
  each_field(body, [&](const Field& f) {
    switch (f.tag) {
      case critical(1):
        m.transfer = f.number();
        return true;
      case critical(2):
        m.deadline_ms = f.number();
        return true;
      case critical(3): {
        NXL_CHECK(f.value.size() % kRunBytes == 0, kInvalid, "a run table of ", f.value.size(), " bytes, rows have ",
                  kRunBytes);
        PackedReader in(f.value);
        m.runs.reserve(f.value.size() / kRunBytes);
        while (!in.at_end()) {
          Run r;
          r.source_region = in.u32();
          r.target_region = in.u32();
          r.source_offset = in.u64();
          r.target_offset = in.u64();
          r.bytes = in.u64();
          r.source_stride = in.u64();
          r.target_stride = in.u64();
          const uint64_t count = in.u64();
          NXL_CHECK(count <= UINT32_MAX, kInvalid, "a run of ", count, " pieces");
          r.count = static_cast<uint32_t>(count);
          m.runs.push_back(r);
        }
        return true;
      }
      case critical(4): {
        PackedReader in(f.value);
        while (!in.at_end()) {
          const uint32_t index = in.u32();
          m.target_keys.emplace_back(index, Key{});
          m.target_keys.back().second = {in.u64(), in.u64()};
        }
        return true;
      }
      case critical(5):
        m.notification = f.text(kMaxNotification);
        return true;
      case 6:
        m.life_word = f.number();
        return true;
      case 7:
        m.life_generation = f.number();
        return true;
      default:
        return false;
    }
  });
  return m;
}

Body WriteStatusMessage::encode() const {
  FieldWriter out;
  out.number(critical(1), transfer).number(critical(2), static_cast<uint64_t>(state));
  out.number(critical(3), static_cast<uint64_t>(cause)).text(4, std::string_view(message).substr(0, kMaxText));
  out.number(5, bytes).number(6, in_place).number(7, took_us);
  return out.take();
}

WriteStatusMessage WriteStatusMessage::decode(BodyView body) {
  WriteStatusMessage m;
  each_field(body, [&](const Field& f) {
    switch (f.tag) {
      case critical(1):
        m.transfer = f.number();
        return true;
      case critical(2):
        m.state = enumerated(f, WriteState::kFailed);
        return true;
      case critical(3):
        m.cause = enumerated(f, static_cast<Cause>(kCauseCount - 1));
        return true;
      case 4:
        m.message = f.text(kMaxText);
        return true;
      case 5:
        m.bytes = f.number();
        return true;
      case 6:
        m.in_place = f.number();
        return true;
      case 7:
        m.took_us = f.number();
        return true;
      default:
        return false;
    }
  });
  return m;
}

}  // namespace nxl::kv
