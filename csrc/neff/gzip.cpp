// SPDX-License-Identifier: Apache-2.0
// Inflation of a gzip archive through zlib, where the build has it.
#include "core/error.h"
#include "neff/archive.h"
#if defined(NXL_HAVE_ZLIB)
#include <zlib.h>

#include <algorithm>
#include <limits>
#endif

namespace nxl::neff {

bool is_gzip(std::span<const std::byte> data) {
  return data.size() >= 2 && data[0] == std::byte{0x1F} && data[1] == std::byte{0x8B};
}

#if defined(NXL_HAVE_ZLIB)
namespace {

constexpr size_t kInflatedLimit = size_t{8} << 30;

struct Inflater {
  z_stream stream{};
  Inflater() {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    NXL_CHECK(inflateInit2(&stream, kGzipOnly) == Z_OK, kInternal, "zlib cannot start inflating");
  }
  ~Inflater() { inflateEnd(&stream); }
};

}  // namespace

std::vector<std::byte> inflate_gzip(std::span<const std::byte> data) {
  Inflater inflater;
  z_stream& stream = inflater.stream;
  std::vector<std::byte> out(std::min(kInflatedLimit, std::max<size_t>(data.size() * 4, 65536)));
  size_t consumed = 0;
  size_t produced = 0;
  constexpr size_t kStep = std::numeric_limits<uInt>::max();  // zlib counts in 32 bits
  for (;;) {
    if (produced == out.size()) {
      NXL_CHECK(out.size() < kInflatedLimit, kInvalid, "NEFF archive: it inflates to more than ", kInflatedLimit,
                " bytes");
      out.resize(std::min(kInflatedLimit, out.size() * 2));
    }
    stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(data.data() + consumed));
    stream.avail_in = static_cast<uInt>(std::min(kStep, data.size() - consumed));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + produced);
    stream.avail_out = static_cast<uInt>(std::min(kStep, out.size() - produced));
    const uInt in_before = stream.avail_in;
    const uInt out_before = stream.avail_out;
    const int result = inflate(&stream, Z_NO_FLUSH);
    consumed += in_before - stream.avail_in;
    produced += out_before - stream.avail_out;
    if (result == Z_STREAM_END) break;
    NXL_CHECK(result == Z_OK, kInvalid, "NEFF archive: the gzip data is damaged at byte ", consumed, " (",
              stream.msg != nullptr ? stream.msg : "truncated", ")");
  }
  NXL_CHECK(consumed == data.size(), kInvalid, "NEFF archive: ", data.size() - consumed, " bytes after the gzip data");
  out.resize(produced);
  return out;
}

#else

std::vector<std::byte> inflate_gzip(std::span<const std::byte>) {
  throw_error(
      ErrorKind::kUnsupported,
      "this NEFF's archive is gzip, and this build of libtorch-neuronx-lite has no zlib; unpack it with gunzip or "
      "build with zlib's headers installed");
}

#endif

}  // namespace nxl::neff
