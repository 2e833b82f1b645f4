// SPDX-License-Identifier: Apache-2.0
// The fuzz entry of the data connections' frames: any bytes give a header and a message or an Error, nothing else. The
// first byte says whether checksums are made right, so that what is behind them is reached.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/crc32c.h"
#include "core/error.h"
#include "kv/fuzz_target.h"
#include "kv/providers/run_cursor.h"
#include "kv/providers/tcp_frames.h"

namespace {

using namespace nxl::kv;  // NOLINT: a program of its own
using Bytes = std::vector<std::byte>;

// Offsets of the header's fields: docs/kv-protocol.md.
void repair(Bytes& bytes) {
  if (bytes.size() < kDataHeaderBytes) return;
  const auto body = std::span(bytes).subspan(kDataHeaderBytes);
  const auto length = static_cast<uint32_t>(body.size());
  std::memcpy(bytes.data(), &kDataMagic, 4);
  bytes[4] = std::byte{kDataVersion};
  std::memcpy(bytes.data() + 16, &length, 4);
  const uint32_t body_crc = nxl::crc32c(body);
  std::memcpy(bytes.data() + 20, &body_crc, 4);
  const uint32_t header_crc = nxl::crc32c({bytes.data(), kDataHeaderBytes - 4});
  std::memcpy(bytes.data() + kDataHeaderBytes - 4, &header_crc, 4);
}

// Throws Error for what is no frame.
void take(const Bytes& bytes) {
  NXL_CHECK(bytes.size() >= kDataHeaderBytes, kInvalid, "a header of ", bytes.size(), " bytes");
  const DataHeader header = decode_header(std::span(bytes).first<kDataHeaderBytes>());
  const auto body = std::span(bytes).subspan(kDataHeaderBytes);
  NXL_CHECK(body.size() == header.body_bytes, kInvalid, "a body of ", body.size(), " bytes");
  check_body(header, body);
  if (header.type == DataFrame::kRead) {
    const ReadRequest request = decode_read(body);
    // The server walks it: the cursor must come to an end after exactly its bytes.
    uint64_t bytes_left = total_bytes(request.runs).value();
    for (RunCursor cursor(request.runs); !cursor.at_end();) bytes_left -= cursor.next(kDataChunkBytes).total_bytes();
    if (bytes_left != 0) std::abort();
    const Bytes once = encode_read(request);
    if (encode_read(decode_read(once)) != once) std::abort();
  } else if (header.type == DataFrame::kStatus) {
    const Bytes once = encode_status(decode_status(body));
    if (encode_status(decode_status(once)) != once) std::abort();
  }
}

}  // namespace

namespace nxl::kv::test {

std::vector<std::byte> good_frame(std::mt19937_64& random, uint64_t number) {
  const auto filled = [&](size_t bytes) {
    Bytes body(bytes);
    for (std::byte& byte : body) byte = static_cast<std::byte>(random());
    return body;
  };
  switch (random() % 6) {
    case 0:
      return encode_data_frame(DataFrame::kHello, 0, filled(sizeof(uint64_t) + sizeof(Nonce)));
    case 1:
      return encode_data_frame(DataFrame::kProof, 0, filled(sizeof(Sha256Digest)));
    case 2:
      return encode_data_frame(DataFrame::kWord, number, filled(sizeof(uint64_t)));
    case 3:
      return encode_data_frame(DataFrame::kData, number, filled(1 + random() % 200), kDataFlagChecksum);
    case 4:
      return encode_data_frame(DataFrame::kStatus, number,
                               encode_status({4, Cause::kRefused, random(), "no such region"}));
    default: {
      ReadRequest request{{{7, {random(), random()}}, {9, {random(), random()}}}, {}};
      for (uint32_t i = 0; i < 1 + random() % 5; ++i) {
        request.runs.push_back({.source_region = i % 2,
                                .source_offset = random() % 100000,
                                .bytes = 1 + random() % 5000,
                                .source_stride = random() % 9000,
                                .count = static_cast<uint32_t>(1 + random() % 30)});
      }
      return encode_data_frame(DataFrame::kRead, number, encode_read(request), random() % 2 ? kDataFlagChecksum : 0);
    }
  }
}

bool accepted(const std::vector<std::byte>& bytes) {
  try {
    take(bytes);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace nxl::kv::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Bytes bytes(reinterpret_cast<const std::byte*>(data + 1), reinterpret_cast<const std::byte*>(data + size));
  if ((data[0] & 1) != 0) repair(bytes);
  try {
    take(bytes);
  } catch (const nxl::Error& error) {
    if (error.kind() != nxl::ErrorKind::kInvalid) std::abort();
  }
  return 0;
}
