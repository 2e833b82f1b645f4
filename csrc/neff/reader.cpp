// SPDX-License-Identifier: Apache-2.0
// Opening a NEFF: header, digest, archive, target.
#include "neff/reader.h"

#include <algorithm>
#include <cstring>

#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
#include "neff/archive.h"
#include "neff/layout.h"
#include "neff/seal.h"

namespace nxl::neff {
namespace {

template <size_t N>
std::string header_text(const char (&field)[N], const char* what) {
  const std::string_view text(field, strnlen(field, N));
  NXL_CHECK(text.size() < N, kInvalid, "NEFF header: ", what, " is not terminated within ", N, " bytes");
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  NXL_CHECK(printable, kInvalid, "NEFF header: ", what, " holds bytes that are not printable ASCII");
  return std::string(text);
}

Header read_header(std::span<const std::byte> bytes) {
  NXL_CHECK(bytes.size() >= kHeaderBytes, kInvalid, "not a NEFF: ", bytes.size(), " bytes, the header alone has ",
            kHeaderBytes);
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  NXL_CHECK(raw.header_size == kHeaderBytes, kInvalid, "not a NEFF: header_size is ", raw.header_size, ", it must be ",
            kHeaderBytes);
  const uint64_t available = bytes.size() - kHeaderBytes;
  NXL_CHECK(raw.data_size == available, kInvalid, "NEFF header: data_size is ", raw.data_size, ", but ", available,
            " bytes follow the header; the file is ", raw.data_size > available ? "truncated" : "longer than it says");
  Header header;
  header.pkg_version = raw.pkg_version;
  header.data_size = raw.data_size;
  header.version_major = raw.version_major;
  header.version_minor = raw.version_minor;
  header.build_version = header_text(raw.build_version, "neff_build_version");
  header.num_tpb = raw.num_tpb;
  std::copy(std::begin(raw.hash), std::end(raw.hash), header.hash.begin());
  std::copy(std::begin(raw.uuid), std::end(raw.uuid), header.uuid.begin());
  header.name = header_text(raw.name, "name");
  header.feature_bits = raw.feature_bits;
  header.lnc_size = raw.lnc_size;
  return header;
}

void check_digest(const Header& header, std::span<const std::byte> data) {
  const Sha256Digest actual = sha256(data);
  if (actual == header.hash) return;
  // Older packages hold an md5 in the first 16 bytes. A sha256 that ends in 16 zero bytes does not happen.
  const auto rest = std::span(header.hash).subspan(sizeof(Md5Digest));
  if (std::all_of(rest.begin(), rest.end(), [](uint8_t b) { return b == 0; })) {
    const Md5Digest old = md5(data);
    if (std::equal(old.begin(), old.end(), header.hash.begin())) return;
  }
  throw_error(ErrorKind::kInvalid, detail::concat("NEFF '", header.name,
                                                  "': the digest of the data is not the one in the header; the file is "
                                                  "damaged"));
}

// What no digest of the data covers: the header of a host NEFF, by its uuid.
void check_seal(const Header& header, std::span<const std::byte> bytes) {
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  NXL_CHECK(sealed_uuid(raw) == header.uuid, kInvalid,
            "the uuid in the header is not the one of its other fields; the file is damaged, or another version of "
            "this package made it: compile again");
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// "host", or the chip's name where the file gives one, or "chip".
std::string read_target(const Files& files) {
  const auto entry = files.find("neff.json");
  if (entry == files.end()) {
    NXL_CHECK(files.contains("sg00/def.json"), kInvalid,
              "it is no NEFF: the archive has neither neff.json nor sg00/def.json");
    return "chip";
  }
  const Json json = Json::parse(as_text(entry->second));
  NXL_CHECK(json.is_object(), kInvalid, "neff.json must be a JSON object");
  const Json* target = json.find("target");
  if (target == nullptr) return "chip";
  const std::string& name = target->as_string("neff.json: target");
  const bool plain = !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
  NXL_CHECK(plain, kInvalid, "neff.json: target must be 1 to 32 of a-z 0-9 - _");
  if (name == "host") {
    const int64_t version = json.at("version").as_int("neff.json: version");
    NXL_CHECK(version == 1, kInvalid, "neff.json: version ", version,
              " of the host format is not known here; the NEFF was "
              "made by another version of this package, compile again");
  }
  return name;
}

}  // namespace

Neff Neff::open(std::span<const std::byte> bytes, bool verify_digest) {
  Neff neff;
  neff.header_ = read_header(bytes);
  std::span<const std::byte> archive = bytes.subspan(kHeaderBytes);
  if (verify_digest) check_digest(neff.header_, archive);
  if (is_gzip(archive)) {
    neff.inflated_ = inflate_gzip(archive);
    archive = neff.inflated_;
  }
  neff.files_ = read_tar(archive);
  try {
    neff.target_ = read_target(neff.files_);
    if (verify_digest && neff.target_ == "host") check_seal(neff.header_, bytes);
    neff.read_variables();
  } catch (const Error& error) {
    throw_error(error.kind(), detail::concat("NEFF '", neff.header_.name, "': ", error.what()));
  }
  return neff;
}

std::span<const std::byte> Neff::file(std::string_view path) const {
  const auto entry = files_.find(path);
  NXL_CHECK(entry != files_.end(), kInvalid, "NEFF '", header_.name, "': the archive has no '", path, "'");
  return entry->second;
}

}  // namespace nxl::neff
