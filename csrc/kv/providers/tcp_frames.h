// SPDX-License-Identifier: Apache-2.0
// Frames of a data connection. docs/kv-protocol.md has the rules. Little endian; everything read here is hostile until
// proved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/api.h"
#include "kv/auth.h"
#include "kv/provider.h"
#include "kv/region.h"

namespace nxl::kv {

inline constexpr uint32_t kDataMagic = 0x444B584E;  // "NXKD"
inline constexpr uint8_t kDataVersion = 1;
inline constexpr size_t kDataHeaderBytes = 32;
inline constexpr uint32_t kDataChunkBytes = 1 << 20;  // body of one kData frame at most
// Pieces below this are gathered and scattered by way of a buffer: an entry of a vector costs the kernel more than
// that.
inline constexpr uint64_t kSmallPiece = 1024;
inline constexpr size_t kStagingBytes = 256 << 10;  // stays in the second-level cache
inline constexpr uint32_t kMaxRequestRuns = 4096;   // of one kRead
inline constexpr uint32_t kMaxRequestRegions = 1024;
inline constexpr uint64_t kMaxRequestBytes = 16 << 20;  // that one kRead may ask for
inline constexpr uint32_t kMaxRequestsAhead = 4;        // of one connection; later ones wait in the socket
inline constexpr uint32_t kMaxStatusText = 512;
// The largest body but data: a kRead with all its regions and runs.
inline constexpr uint32_t kMaxControlBody = 8 + kMaxRequestRegions * 20 + kMaxRequestRuns * 32;

enum class DataFrame : uint8_t {
  kHello = 1,      // reader: session, nonce
  kChallenge = 2,  // server: nonce, proof
  kProof = 3,      // reader: proof
  kRead = 4,       // reader: regions with their keys, source runs
  kWord = 5,       // reader: index of a word of the lease table
  kData = 6,       // server: the next bytes of the request, in the order of its runs
  kStatus = 7,     // server: the end of a request, always, good or bad
};

inline constexpr uint16_t kDataFlagChecksum = 1;  // kRead: wanted; kData: body_crc is that of the body

struct DataHeader {
  DataFrame type = DataFrame::kStatus;
  uint16_t flags = 0;
  uint64_t sequence = 0;  // of the request, from 1, rising by one
  uint32_t body_bytes = 0;
  uint32_t body_crc = 0;  // CRC32C; of every body but that of a kData without the flag, where it is 0
};

NXL_API std::array<std::byte, kDataHeaderBytes> encode_header(const DataHeader& header);
// Throws Error(kInvalid): magic, version, type, flags, checksum, a body larger than its type may have.
NXL_API DataHeader decode_header(std::span<const std::byte, kDataHeaderBytes> bytes);

// Header and body; the body's checksum is filled in.
NXL_API std::vector<std::byte> encode_data_frame(DataFrame type, uint64_t sequence, std::span<const std::byte> body,
                                                 uint16_t flags = 0);
// Throws Error(kInvalid) when `body` is not what `header` was computed for.
NXL_API void check_body(const DataHeader& header, std::span<const std::byte> body);

struct RequestedRegion {
  uint32_t index = 0;
  Key key{};
};

// Where a request's bytes come from: `runs` name places in `regions` by source_region, offset, stride, bytes, count.
struct ReadRequest {
  std::vector<RequestedRegion> regions;
  std::vector<Run> runs;
};
// Whether the pieces of these runs are small on average.
NXL_API bool small_pieces(std::span<const Run> runs);
NXL_API std::vector<std::byte> encode_read(const ReadRequest& request);
// Throws Error(kInvalid) for counts over the limits, a run of no listed region, no bytes, or more than
// kMaxRequestBytes.
NXL_API ReadRequest decode_read(std::span<const std::byte> body);

struct RequestStatus {
  int code = 0;
  Cause cause = Cause::kNone;
  uint64_t word = 0;  // of kWord
  std::string text;
};
NXL_API std::vector<std::byte> encode_status(const RequestStatus& status);
NXL_API RequestStatus decode_status(std::span<const std::byte> body);

// What one side of a data connection proves to the other: that it knows the session's secret, for these two nonces.
NXL_API Sha256Digest data_proof(const Secret& secret, uint64_t session, bool by_server, bool reader_is_initiator,
                                const Nonce& reader, const Nonce& server);

}  // namespace nxl::kv
