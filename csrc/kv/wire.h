// SPDX-License-Identifier: Apache-2.0
// Frames of the control connection: a fixed header, then fields of tag, length and bytes. docs/kv-protocol.md has the
// rules. Everything read here is hostile until proved: sizes are bounded before they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/api.h"

namespace nxl::kv {

inline constexpr uint32_t kFrameMagic = 0x564B584E;  // "NXKV", little endian as every number on the wire
inline constexpr uint8_t kVersionMajor = 1;          // another major is refused
inline constexpr uint8_t kVersionMinor = 0;          // unknown fields of a later minor are skipped unless critical
inline constexpr size_t kFrameHeaderBytes = 40;
inline constexpr uint32_t kMaxBodyBytes = 16 << 20;
inline constexpr uint32_t kMaxBodyBytesBeforeProof = 16 << 10;
inline constexpr uint32_t kMaxFrameDescriptors = 200;  // the kernel passes 253 at a time

enum class FrameType : uint8_t {
  kHello = 1,      // connector: name, incarnation, nonce
  kChallenge = 2,  // acceptor: name, incarnation, nonce, proof
  kProof = 3,      // connector: proof
  kRefuse = 4,     // either: why not; the last frame of a connection, readable in every major version
  kMetadata = 5,   // either: providers, lease table, KV layout
  kRegions = 6,    // either: regions that joined, regions that left
  kReady = 7,      // either: the metadata was accepted
  kPing = 8,
  kPong = 9,
  kGoAway = 10,  // either: the session ends now
  kNotify = 11,
  kNotifyAck = 12,
  kWriteRequest = 13,  // initiator: runs for the target to read
  kWriteStatus = 14,   // target: how a request stands or ended
  kWriteQuery = 15,    // initiator: how does it stand
  kWriteCancel = 16,
  kLayout = 17,  // either: the KV layout was described or replaced
};
inline constexpr uint8_t kLastFrameType = 17;
NXL_API const char* frame_name(FrameType type);

inline constexpr uint8_t kFlagAuthenticated = 1;  // the body ends in a 16-byte code over header and body

struct FrameHeader {
  uint8_t major = kVersionMajor;
  uint8_t minor = kVersionMinor;
  FrameType type = FrameType::kPing;
  uint8_t flags = 0;
  uint64_t session = 0;
  uint64_t sequence = 0;  // rises by one with each frame of a direction
  uint32_t body_bytes = 0;
  uint32_t descriptors = 0;  // that came with the frame over a Unix socket
};

struct Frame {
  FrameHeader header;
  std::vector<std::byte> body;
};

// Header with its checksums, then the body.
NXL_API std::vector<std::byte> encode_frame(const FrameHeader& header, std::span<const std::byte> body);

// Bytes of a stream in, whole frames out. Throws Error(kInvalid) at the first byte that breaks a rule; the connection
// is then beyond use.
class NXL_API FrameParser {
 public:
  void set_body_limit(uint32_t bytes) { body_limit_ = bytes; }
  void append(std::span<const std::byte> bytes);
  std::optional<Frame> next();
  size_t buffered() const { return buffer_.size() - begin_; }

 private:
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  uint32_t body_limit_ = kMaxBodyBytesBeforeProof;
};

// Tags with this bit must be understood: a reader that does not know one refuses the frame.
inline constexpr uint16_t kCritical = 0x8000;

class NXL_API FieldWriter {
 public:
  FieldWriter& bytes(uint16_t tag, std::span<const std::byte> value);
  FieldWriter& text(uint16_t tag, std::string_view value) {
    return bytes(tag, std::as_bytes(std::span(value.data(), value.size())));
  }
  FieldWriter& number(uint16_t tag, uint64_t value);
  std::vector<std::byte> take() { return std::move(body_); }

 private:
  std::vector<std::byte> body_;
};

struct Field {
  uint16_t tag = 0;
  std::span<const std::byte> value;

  // Throw Error(kInvalid) that names the tag when the length does not fit.
  uint64_t number() const;
  uint32_t number32() const;  // and when the value does not fit
  std::string text(size_t most) const;
  void copy_to(std::span<std::byte> out) const;  // exactly that many bytes
};

// Fields in order. next() is empty at the end and throws Error(kInvalid) when a field leaves the body.
class NXL_API FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> body) : rest_(body) {}
  std::optional<Field> next();
  // For the default case of a switch over tags: throws for a critical field, skips another one.
  static void unknown(const Field& field);

 private:
  std::span<const std::byte> rest_;
};

// Little-endian numbers in a fixed structure, checked against its end.
class NXL_API PackedReader {
 public:
  explicit PackedReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  uint64_t u64();
  uint32_t u32();
  std::string text(size_t most);  // u32 length, bytes
  bool at_end() const { return rest_.empty(); }
  size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> take(size_t bytes);
  std::span<const std::byte> rest_;
};

class NXL_API PackedWriter {
 public:
  PackedWriter& u64(uint64_t value);
  PackedWriter& u32(uint32_t value);
  PackedWriter& text(std::string_view value);
  PackedWriter& raw(std::span<const std::byte> value);
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace nxl::kv
