// SPDX-License-Identifier: Apache-2.0
// The fuzz entry of the control protocol: any bytes give frames and messages or an Error, nothing else. The first byte
// says whether checksums are made right, so that what is behind them is reached.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/crc32c.h"
#include "core/error.h"
#include "kv/fuzz_target.h"
#include "kv/sample_frames.h"

namespace {

using nxl::kv::kFrameHeaderBytes;

// Offsets of the header's lengths and checksums: docs/kv-protocol.md.
void repair(std::vector<std::byte>& bytes) {
  size_t at = 0;
  while (bytes.size() - at >= kFrameHeaderBytes) {
    std::byte* header = bytes.data() + at;
    uint32_t body = 0;
    std::memcpy(&body, header + 24, 4);
    body = static_cast<uint32_t>(std::min<size_t>(body, bytes.size() - at - kFrameHeaderBytes));
    std::memcpy(header, &nxl::kv::kFrameMagic, 4);
    header[4] = std::byte{nxl::kv::kVersionMajor};
    std::memcpy(header + 24, &body, 4);
    const uint32_t body_crc = nxl::crc32c({header + kFrameHeaderBytes, body});
    std::memcpy(header + 32, &body_crc, 4);
    const uint32_t header_crc = nxl::crc32c({header, 36});
    std::memcpy(header + 36, &header_crc, 4);
    at += kFrameHeaderBytes + body;
  }
}

}  // namespace

namespace nxl::kv::test {

std::vector<std::byte> good_frame(std::mt19937_64& random, uint64_t number) {
  static const auto bodies = sample_bodies();
  const auto& [type, body] = bodies[random() % bodies.size()];
  FrameHeader header;
  header.type = type;
  header.session = random();
  header.sequence = number;
  return encode_frame(header, body);
}

bool accepted(const std::vector<std::byte>& bytes) {
  try {
    FrameParser parser;
    parser.set_body_limit(kMaxBodyBytes);
    parser.append(bytes);
    return parser.next().has_value();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace nxl::kv::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data + 1),
                               reinterpret_cast<const std::byte*>(data + size));
  if ((data[0] & 1) != 0) repair(bytes);
  try {
    nxl::kv::FrameParser parser;
    if ((data[0] & 2) != 0) parser.set_body_limit(nxl::kv::kMaxBodyBytes);
    const size_t half = bytes.size() / 2;
    parser.append(std::span(bytes).first(half));
    for (int part = 0; part < 2; ++part) {
      while (const auto frame = parser.next()) {
        const auto once = nxl::kv::test::decode_and_encode(frame->header.type, frame->body);
        // What was understood is said again in one way only.
        if (nxl::kv::test::decode_and_encode(frame->header.type, once) != once) std::abort();
      }
      if (part == 0) parser.append(std::span(bytes).subspan(half));
    }
  } catch (const nxl::Error& error) {
    if (error.kind() != nxl::ErrorKind::kInvalid) std::abort();
  }
  return 0;
}
