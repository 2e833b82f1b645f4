// SPDX-License-Identifier: Apache-2.0
// Encoding and bounded decoding of data-connection frames.
#include "kv/providers/tcp_frames.h"

#include <algorithm>
#include <cstring>

#include "core/crc32c.h"
#include "core/error.h"
#include "kv/providers/run_cursor.h"
#include "kv/wire.h"

namespace nxl::kv {
namespace {

struct RawHeader {
  uint32_t magic;
  uint8_t version;
  uint8_t type;
  uint16_t flags;
  uint64_t sequence;
  uint32_t body_bytes;
  uint32_t body_crc;
  uint32_t reserved;
  uint32_t header_crc;  // of what stands before it
};
static_assert(sizeof(RawHeader) == kDataHeaderBytes);

uint32_t header_crc(const RawHeader& raw) {
  return crc32c(std::as_bytes(std::span(&raw, 1)).first(offsetof(RawHeader, header_crc)));
}

uint32_t body_limit(DataFrame type) {
  constexpr uint32_t kNonce = sizeof(Nonce), kProof = sizeof(Sha256Digest);
  switch (type) {
    case DataFrame::kHello:
      return sizeof(uint64_t) + kNonce;
    case DataFrame::kChallenge:
      return kNonce + kProof;
    case DataFrame::kProof:
      return kProof;
    case DataFrame::kRead:
      return kMaxControlBody;
    case DataFrame::kWord:
      return sizeof(uint64_t);
    case DataFrame::kData:
      return kDataChunkBytes;
    case DataFrame::kStatus:
      return 20 + kMaxStatusText;
  }
  throw_error(ErrorKind::kInvalid, detail::concat("data frame of unknown type ", static_cast<int>(type)));
}

}  // namespace

std::array<std::byte, kDataHeaderBytes> encode_header(const DataHeader& header) {
  RawHeader raw{kDataMagic,
                kDataVersion,
                static_cast<uint8_t>(header.type),
                header.flags,
                header.sequence,
                header.body_bytes,
                header.body_crc,
                0,
                0};
  raw.header_crc = header_crc(raw);
  std::array<std::byte, kDataHeaderBytes> bytes;
  std::memcpy(bytes.data(), &raw, sizeof(raw));
  return bytes;
}

DataHeader decode_header(std::span<const std::byte, kDataHeaderBytes> bytes) {
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  NXL_CHECK(raw.magic == kDataMagic, kInvalid, "data frame with magic ", raw.magic, ", expected ", kDataMagic);
  NXL_CHECK(raw.header_crc == header_crc(raw), kInvalid, "data frame whose header is damaged");
  NXL_CHECK(raw.version == kDataVersion, kInvalid, "data frame of version ", int{raw.version}, ", expected ",
            int{kDataVersion});
  DataHeader header{static_cast<DataFrame>(raw.type), raw.flags, raw.sequence, raw.body_bytes, raw.body_crc};
  const uint32_t limit = body_limit(header.type);
  NXL_CHECK(raw.body_bytes <= limit, kInvalid, "data frame of type ", int{raw.type}, " with a body of ", raw.body_bytes,
            " bytes, the limit is ", limit);
  const bool may_flag = header.type == DataFrame::kRead || header.type == DataFrame::kData;
  NXL_CHECK((raw.flags & ~(may_flag ? kDataFlagChecksum : 0)) == 0 && raw.reserved == 0, kInvalid,
            "data frame with flags ", raw.flags, " and reserved field ", raw.reserved);
  return header;
}

std::vector<std::byte> encode_data_frame(DataFrame type, uint64_t sequence, std::span<const std::byte> body,
                                         uint16_t flags) {
  const auto header = encode_header({type, flags, sequence, static_cast<uint32_t>(body.size()), crc32c(body)});
  std::vector<std::byte> frame(header.size() + body.size());
  std::ranges::copy(header, frame.begin());
  std::ranges::copy(body, frame.begin() + header.size());
  return frame;
}

void check_body(const DataHeader& header, std::span<const std::byte> body) {
  NXL_CHECK(crc32c(body) == header.body_crc, kInvalid, "data frame of type ", static_cast<int>(header.type),
            " whose body is damaged");
}

bool small_pieces(std::span<const Run> runs) {
  uint64_t bytes = 0, pieces = 0;
  for (const Run& run : runs) bytes += run.total_bytes(), pieces += run.count;
  return bytes < pieces * kSmallPiece;
}

std::vector<std::byte> encode_read(const ReadRequest& request) {
  PackedWriter body;
  body.u32(static_cast<uint32_t>(request.regions.size())).u32(static_cast<uint32_t>(request.runs.size()));
  for (const RequestedRegion& region : request.regions) body.u32(region.index).u64(region.key[0]).u64(region.key[1]);
  for (const Run& run : request.runs) {
    body.u32(run.source_region).u32(run.count).u64(run.source_offset).u64(run.bytes).u64(run.source_stride);
  }
  return body.bytes();
}

ReadRequest decode_read(std::span<const std::byte> body) {
  PackedReader reader(body);
  const uint32_t regions = reader.u32();
  const uint32_t runs = reader.u32();
  NXL_CHECK(regions <= kMaxRequestRegions && runs <= kMaxRequestRuns, kInvalid, "read request of ", regions,
            " regions and ", runs, " runs, the limits are ", kMaxRequestRegions, " and ", kMaxRequestRuns);
  NXL_CHECK(reader.left() == size_t{regions} * 20 + size_t{runs} * 32, kInvalid, "read request of ", body.size(),
            " bytes for ", regions, " regions and ", runs, " runs");
  ReadRequest request;
  request.regions.resize(regions);
  for (RequestedRegion& region : request.regions) {
    region.index = reader.u32();
    region.key[0] = reader.u64();
    region.key[1] = reader.u64();
  }
  request.runs.resize(runs);
  for (Run& run : request.runs) {
    run.source_region = reader.u32();
    run.count = reader.u32();
    run.source_offset = reader.u64();
    run.bytes = reader.u64();
    run.source_stride = reader.u64();
    NXL_CHECK(run.source_region < regions, kInvalid, "read request whose run names region ", run.source_region, " of ",
              regions);
    NXL_CHECK(run.bytes != 0 && run.count != 0, kInvalid, "read request with an empty run");
  }
  const std::optional<uint64_t> total = total_bytes(request.runs);
  NXL_CHECK(total && *total != 0 && *total <= kMaxRequestBytes, kInvalid, "read request for ",
            total.value_or(UINT64_MAX), " bytes, there must be 1 to ", kMaxRequestBytes);
  return request;
}

std::vector<std::byte> encode_status(const RequestStatus& status) {
  PackedWriter body;
  body.u32(static_cast<uint32_t>(status.code)).u32(static_cast<uint32_t>(status.cause)).u64(status.word);
  body.text(std::string_view(status.text).substr(0, kMaxStatusText));
  return body.bytes();
}

RequestStatus decode_status(std::span<const std::byte> body) {
  PackedReader reader(body);
  RequestStatus status;
  status.code = static_cast<int>(reader.u32());
  const uint32_t cause = reader.u32();
  NXL_CHECK(cause < kCauseCount, kInvalid, "status with cause ", cause, " of ", kCauseCount);
  status.cause = static_cast<Cause>(cause);
  status.word = reader.u64();
  status.text = reader.text(kMaxStatusText);
  NXL_CHECK(reader.at_end(), kInvalid, "status with ", reader.left(), " bytes too many");
  return status;
}

Sha256Digest data_proof(const Secret& secret, uint64_t session, bool by_server, bool reader_is_initiator,
                        const Nonce& reader, const Nonce& server) {
  PackedWriter text;
  text.text(by_server ? "nxl-kv data server" : "nxl-kv data reader").u32(reader_is_initiator).u64(session);
  text.raw(std::as_bytes(std::span(reader))).raw(std::as_bytes(std::span(server)));
  return hmac_sha256(std::as_bytes(std::span(secret)), text.bytes());
}

}  // namespace nxl::kv
