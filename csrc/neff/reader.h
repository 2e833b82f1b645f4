// SPDX-License-Identifier: Apache-2.0
// NEFF container reader: a 1024-byte header, then a tar archive, plain or gzip. Every byte is hostile until checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/api.h"
#include "core/dtype.h"

namespace nxl::neff {

// What the header says; strings are cut at the first NUL and checked to be printable.
struct Header {
  uint64_t pkg_version = 0;
  uint64_t data_size = 0;
  uint64_t version_major = 0;
  uint64_t version_minor = 0;
  std::string build_version;
  uint32_t num_tpb = 0;
  std::array<uint8_t, 32> hash{};
  std::array<uint8_t, 16> uuid{};
  std::string name;
  uint64_t feature_bits = 0;
  uint32_t lnc_size = 0;
};

// One input or output of the executable. Host NEFFs state dtype and shape; a chip NEFF may leave them out.
struct Variable {
  std::string name;
  uint64_t bytes = 0;
  bool has_shape = false;
  DType dtype = DType::kUInt8;
  std::vector<int64_t> shape;
  int alias_input = -1;  // outputs only: index into inputs of the tensor whose memory this output IS
};

// An opened NEFF. Views point into the bytes given to open(), which must outlive it, or into `inflated` when the
// archive was gzip. Move-only, because of those views.
class NXL_API Neff {
 public:
  Neff(Neff&&) noexcept = default;
  Neff& operator=(Neff&&) noexcept = default;

  // Throws Error(kInvalid) naming the field, the value and the limit. verify_digest compares the digest of
  // the data and, for the target host, that of the header. A chip's header is NRT's to judge.
  static Neff open(std::span<const std::byte> bytes, bool verify_digest = true);

  const Header& header() const { return header_; }
  const std::string& target() const { return target_; }  // "host", or what neff.json / the layout says: "chip"
  const std::vector<Variable>& inputs() const { return inputs_; }    // in var_id order
  const std::vector<Variable>& outputs() const { return outputs_; }  // in var_id order
  const std::map<std::string, std::span<const std::byte>, std::less<>>& files() const { return files_; }
  std::span<const std::byte> file(std::string_view path) const;  // throws Error(kInvalid) when absent

 private:
  Neff() = default;
  void read_variables();

  Header header_;
  std::string target_;
  std::vector<Variable> inputs_;
  std::vector<Variable> outputs_;
  std::vector<std::byte> inflated_;
  std::map<std::string, std::span<const std::byte>, std::less<>> files_;
};

}  // namespace nxl::neff
