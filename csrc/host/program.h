// SPDX-License-Identifier: Apache-2.0
// A host program in memory: docs/host-program.md says what the file holds and what each step means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/json.h"
#include "neff/reader.h"

namespace nxl::host {

struct Buffer {
  enum class Kind : uint8_t { kInput, kOutput, kConstant, kArena };
  Kind kind = Kind::kArena;
  uint32_t index = 0;   // kInput, kOutput: position in the signature
  uint64_t offset = 0;  // kConstant: into constants.bin; kArena: into the arena
  uint64_t bytes = 0;
};

// A strided window on a buffer. Strides are in elements and >= 0 (0 = broadcast); the extent is inside the buffer.
struct Value {
  uint32_t buffer = 0;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t offset = 0;  // elements
};

struct Step {
  std::string op;
  std::vector<uint32_t> inputs;  // indices of values
  std::vector<uint32_t>
      outputs;  // indices of values; never in an input or constant buffer, unless that input is aliased
  Json attributes;
};

struct Program {
  std::vector<neff::Variable> inputs;
  std::vector<neff::Variable> outputs;
  std::vector<Buffer> buffers;
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<std::byte> constants;
  uint64_t arena_bytes = 0;

  // Parses and checks everything: counts, extents (checked arithmetic), buffer kinds, no output in a constant.
  // Throws Error(kInvalid).
  static Program from_neff(const neff::Neff& neff);
};

}  // namespace nxl::host
