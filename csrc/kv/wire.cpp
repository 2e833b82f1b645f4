// SPDX-License-Identifier: Apache-2.0
// Encoding and bounded decoding of control frames.
#include "kv/wire.h"

#include <bit>
#include <cstring>

#include "core/crc32c.h"
#include "core/error.h"

namespace nxl::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

// The header as it lies on the wire.
struct RawHeader {
  uint32_t magic;
  uint8_t major;
  uint8_t minor;
  uint8_t type;
  uint8_t flags;
  uint64_t session;
  uint64_t sequence;
  uint32_t body_bytes;
  uint32_t descriptors;
  uint32_t body_crc;
  uint32_t header_crc;  // of all before it
};
static_assert(sizeof(RawHeader) == kFrameHeaderBytes);

uint32_t header_crc(const RawHeader& raw) {
  return crc32c(std::as_bytes(std::span(&raw, 1)).first(offsetof(RawHeader, header_crc)));
}

template <typename T>
void append_value(std::vector<std::byte>& out, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

constexpr size_t kFieldHeaderBytes = 8;  // u16 tag, u16 zero, u32 length

}  // namespace

const char* frame_name(FrameType type) {
  static constexpr const char* kNames[] = {"?",           "HELLO",        "CHALLENGE",  "PROOF",         "REFUSE",
                                           "METADATA",    "REGIONS",      "READY",      "PING",          "PONG",
                                           "GOAWAY",      "NOTIFY",       "NOTIFY_ACK", "WRITE_REQUEST", "WRITE_STATUS",
                                           "WRITE_QUERY", "WRITE_CANCEL", "LAYOUT"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : kNames[0];
}

std::vector<std::byte> encode_frame(const FrameHeader& header, std::span<const std::byte> body) {
  RawHeader raw{kFrameMagic,
                header.major,
                header.minor,
                static_cast<uint8_t>(header.type),
                header.flags,
                header.session,
                header.sequence,
                static_cast<uint32_t>(body.size()),
                header.descriptors,
                crc32c(body),
                0};
  raw.header_crc = header_crc(raw);
  std::vector<std::byte> out;
  out.reserve(sizeof raw + body.size());
  append_value(out, raw);
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

void FrameParser::append(std::span<const std::byte> bytes) {
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
  } else if (begin_ > (64u << 10)) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(begin_));
    begin_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameParser::next() {
  if (buffered() < kFrameHeaderBytes) return std::nullopt;
  RawHeader raw;
  std::memcpy(&raw, buffer_.data() + begin_, sizeof raw);
  NXL_CHECK(raw.magic == kFrameMagic, kInvalid, "frame begins with ", raw.magic, ", not with the magic number of the ",
            "KV protocol: another program is at the other end");
  NXL_CHECK(raw.header_crc == header_crc(raw), kInvalid, "checksum of a frame header does not fit");
  const auto type = static_cast<FrameType>(raw.type);
  NXL_CHECK(raw.major == kVersionMajor || type == FrameType::kRefuse, kInvalid, "protocol version: the peer speaks ",
            int{raw.major}, ".", int{raw.minor}, ", this agent ", int{kVersionMajor}, ".", int{kVersionMinor},
            "; the major numbers must be the same");
  NXL_CHECK(raw.type >= 1 && raw.type <= kLastFrameType, kInvalid, "frame type ", int{raw.type}, " is unknown");
  NXL_CHECK((raw.flags & ~kFlagAuthenticated) == 0, kInvalid, "frame flags ", int{raw.flags}, " are unknown");
  NXL_CHECK(raw.body_bytes <= body_limit_, kInvalid, frame_name(type), " frame of ", raw.body_bytes,
            " bytes, the limit is ", body_limit_);
  NXL_CHECK(raw.descriptors <= kMaxFrameDescriptors, kInvalid, frame_name(type), " frame with ", raw.descriptors,
            " descriptors, the limit is ", kMaxFrameDescriptors);
  if (buffered() - kFrameHeaderBytes < raw.body_bytes) return std::nullopt;
  const auto body = std::span(buffer_).subspan(begin_ + kFrameHeaderBytes, raw.body_bytes);
  NXL_CHECK(crc32c(body) == raw.body_crc, kInvalid, "checksum of a ", frame_name(type), " frame does not fit");
  Frame frame{{raw.major, raw.minor, type, raw.flags, raw.session, raw.sequence, raw.body_bytes, raw.descriptors},
              {body.begin(), body.end()}};
  begin_ += kFrameHeaderBytes + raw.body_bytes;
  return frame;
}

FieldWriter& FieldWriter::bytes(uint16_t tag, std::span<const std::byte> value) {
  append_value(body_, tag);
  append_value(body_, uint16_t{0});
  append_value(body_, static_cast<uint32_t>(value.size()));
  body_.insert(body_.end(), value.begin(), value.end());
  return *this;
}

FieldWriter& FieldWriter::number(uint16_t tag, uint64_t value) {
  return bytes(tag, std::as_bytes(std::span(&value, 1)));
}

uint64_t Field::number() const {
  uint64_t result = 0;
  copy_to(std::as_writable_bytes(std::span(&result, 1)));
  return result;
}

uint32_t Field::number32() const {
  const uint64_t wide = number();
  NXL_CHECK(wide <= UINT32_MAX, kInvalid, "field ", tag & ~kCritical, " is ", wide, ", the limit is ", UINT32_MAX);
  return static_cast<uint32_t>(wide);
}

std::string Field::text(size_t most) const {
  NXL_CHECK(value.size() <= most, kInvalid, "field ", tag & ~kCritical, " has ", value.size(), " bytes, the limit is ",
            most);
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

void Field::copy_to(std::span<std::byte> out) const {
  NXL_CHECK(value.size() == out.size(), kInvalid, "field ", tag & ~kCritical, " has ", value.size(),
            " bytes, it must have ", out.size());
  std::memcpy(out.data(), value.data(), out.size());
}

std::optional<Field> FieldReader::next() {
  if (rest_.empty()) return std::nullopt;
  NXL_CHECK(rest_.size() >= kFieldHeaderBytes, kInvalid, "frame body ends inside a field header");
  uint16_t tag = 0;
  uint16_t zero = 0;
  uint32_t length = 0;
  std::memcpy(&tag, rest_.data(), 2);
  std::memcpy(&zero, rest_.data() + 2, 2);
  std::memcpy(&length, rest_.data() + 4, 4);
  NXL_CHECK(zero == 0, kInvalid, "reserved bytes of field ", tag & ~kCritical, " are not zero");
  NXL_CHECK(length <= rest_.size() - kFieldHeaderBytes, kInvalid, "field ", tag & ~kCritical, " of ", length,
            " bytes leaves the frame body");
  const Field field{tag, rest_.subspan(kFieldHeaderBytes, length)};
  rest_ = rest_.subspan(kFieldHeaderBytes + length);
  return field;
}

void FieldReader::unknown(const Field& field) {
  NXL_CHECK((field.tag & kCritical) == 0, kInvalid, "critical field ", field.tag & ~kCritical,
            " is unknown to protocol version ", int{kVersionMajor}, ".", int{kVersionMinor});
}

std::span<const std::byte> PackedReader::take(size_t bytes) {
  NXL_CHECK(bytes <= rest_.size(), kInvalid, "a field ends early: ", bytes, " bytes wanted, ", rest_.size(), " left");
  const auto result = rest_.first(bytes);
  rest_ = rest_.subspan(bytes);
  return result;
}

uint64_t PackedReader::u64() {
  uint64_t value = 0;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

uint32_t PackedReader::u32() {
  uint32_t value = 0;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

std::string PackedReader::text(size_t most) {
  const uint32_t length = u32();
  NXL_CHECK(length <= most, kInvalid, "a text of ", length, " bytes, the limit is ", most);
  const auto bytes = take(length);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

PackedWriter& PackedWriter::u64(uint64_t value) {
  append_value(bytes_, value);
  return *this;
}

PackedWriter& PackedWriter::u32(uint32_t value) {
  append_value(bytes_, value);
  return *this;
}

PackedWriter& PackedWriter::text(std::string_view value) {
  u32(static_cast<uint32_t>(value.size()));
  return raw(std::as_bytes(std::span(value.data(), value.size())));
}

PackedWriter& PackedWriter::raw(std::span<const std::byte> value) {
  bytes_.insert(bytes_.end(), value.begin(), value.end());
  return *this;
}

}  // namespace nxl::kv
