// SPDX-License-Identifier: Apache-2.0
// Key files, random numbers, HMAC.
#include "kv/auth.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/unique_handle.h"
#include "kv/wire.h"

namespace nxl::kv {
namespace {

constexpr size_t kBlockBytes = 64;  // of SHA-256
constexpr size_t kMinKeyBytes = 16;
constexpr size_t kMaxKeyBytes = 4096;

}  // namespace

void random_bytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    NXL_CHECK(got > 0, kUnavailable, "getrandom: ", std::strerror(errno));
    out = out.subspan(static_cast<size_t>(got));
  }
}

Key random_key() {
  Key key;
  random_bytes(std::as_writable_bytes(std::span(key)));
  return key;
}

uint64_t random_id() {
  uint64_t id = 0;
  while (id == 0) random_bytes(std::as_writable_bytes(std::span(&id, 1)));
  return id;
}

Sha256Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  std::array<std::byte, kBlockBytes> padded{};
  if (key.size() > kBlockBytes) {
    const Sha256Digest digest = sha256(key);
    std::memcpy(padded.data(), digest.data(), digest.size());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  std::vector<std::byte> inner;
  inner.reserve(kBlockBytes + message.size());
  for (const std::byte b : padded) inner.push_back(b ^ std::byte{0x36});
  inner.insert(inner.end(), message.begin(), message.end());
  const Sha256Digest inner_digest = sha256(inner);
  std::array<std::byte, kBlockBytes + 32> outer;
  for (size_t i = 0; i < kBlockBytes; ++i) outer[i] = padded[i] ^ std::byte{0x5C};
  std::memcpy(outer.data() + kBlockBytes, inner_digest.data(), inner_digest.size());
  return sha256(outer);
}

bool equal_in_constant_time(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  if (a.size() != b.size()) return false;
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

std::vector<std::byte> load_key_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  NXL_CHECK(fd, kInvalid, "key_file ", path, ": ", std::strerror(errno));
  struct stat info {};
  NXL_CHECK(::fstat(fd.get(), &info) == 0, kInvalid, "key_file ", path, ": ", std::strerror(errno));
  NXL_CHECK(S_ISREG(info.st_mode), kInvalid, "key_file ", path, " is not a regular file");
  NXL_CHECK(info.st_uid == ::geteuid(), kInvalid, "key_file ", path, " belongs to user ", info.st_uid,
            ", it must belong to user ", ::geteuid());
  NXL_CHECK((info.st_mode & 077) == 0, kInvalid, "key_file ", path, " has mode 0", (info.st_mode >> 6) & 7,
            (info.st_mode >> 3) & 7, info.st_mode & 7, ", others may use it; set it to 0600 (chmod 600)");
  std::vector<std::byte> key(kMaxKeyBytes + 2);
  size_t size = 0;
  while (size < key.size()) {
    const ssize_t got = ::read(fd.get(), key.data() + size, key.size() - size);
    if (got < 0 && errno == EINTR) continue;
    NXL_CHECK(got >= 0, kInvalid, "key_file ", path, ": ", std::strerror(errno));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > 0 && key[size - 1] == std::byte{'\n'}) --size;
  NXL_CHECK(size >= kMinKeyBytes && size <= kMaxKeyBytes, kInvalid, "key_file ", path, " holds ", size,
            " bytes, it must hold ", kMinKeyBytes, " to ", kMaxKeyBytes);
  key.resize(size);
  return key;
}

Secret Transcript::derive(std::span<const std::byte> key, const char* label) const {
  PackedWriter text;
  text.text("nxl-kv 1").text(label).text(connector).text(acceptor);
  text.raw(std::as_bytes(std::span(connector_incarnation))).raw(std::as_bytes(std::span(acceptor_incarnation)));
  text.raw(std::as_bytes(std::span(connector_nonce))).raw(std::as_bytes(std::span(acceptor_nonce)));
  text.u64(session);
  return hmac_sha256(key, text.bytes());
}

std::array<uint8_t, kFrameCodeBytes> frame_code(const Secret& key, bool from_connector, uint8_t type, uint64_t session,
                                                uint64_t sequence, std::span<const std::byte> body) {
  PackedWriter text;
  text.u32(from_connector ? 1 : 2).u32(type).u64(session).u64(sequence).u64(body.size()).raw(body);
  const Sha256Digest digest = hmac_sha256(std::as_bytes(std::span(key)), text.bytes());
  std::array<uint8_t, kFrameCodeBytes> code;
  std::copy_n(digest.begin(), code.size(), code.begin());
  return code;
}

}  // namespace nxl::kv
