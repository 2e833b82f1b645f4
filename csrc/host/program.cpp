// SPDX-License-Identifier: Apache-2.0
// Reads and checks sg00/program.json; every number in it is hostile.
#include "host/program.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/checked.h"
#include "core/error.h"
#include "host/windows.h"

namespace nxl::host {
namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kMaxBuffers = 1u << 20;
constexpr size_t kMaxValues = 1u << 20;
constexpr size_t kMaxSteps = 1u << 20;
constexpr size_t kMaxOperands = 1u << 16;  // of one step, inputs or outputs
constexpr size_t kMaxRank = 32;
constexpr size_t kMaxOpName = 64;
constexpr uint64_t kMaxBytes = uint64_t{1} << 46;  // of one buffer or the arena: more than any host has
constexpr uint64_t kArenaAlignment = 64;

std::string nth(const char* what, size_t index) { return std::string(what) + " " + std::to_string(index); }

uint64_t bounded(const Json& json, const std::string& what, uint64_t limit) {
  const uint64_t value = json.as_size(what);
  NXL_CHECK(value <= limit, kInvalid, what, " is ", value, ", the limit is ", limit);
  return value;
}

const Json::Array& bounded_array(const Json& json, const std::string& what, size_t limit) {
  const Json::Array& array = json.as_array(what);
  NXL_CHECK(array.size() <= limit, kInvalid, what, " has ", array.size(), " entries, the limit is ", limit);
  return array;
}

// Where a buffer's bytes are: the same memory has the same space and range, whatever name led to it.
struct Place {
  enum class Space { kInput, kOutput, kConstant, kArena } space;
  uint32_t index = 0;
  uint64_t begin = 0;
};

class Parser {
 public:
  Parser(const neff::Neff& neff, const Json& root) : neff_(neff), root_(root) {}

  Program parse() {
    const int64_t version = root_.at("version").as_int("program version");
    NXL_CHECK(version == kVersion, kUnsupported, "the host program has version ", version,
              ", this runtime reads version ", kVersion, "; rebuild the NEFF or upgrade libtorch-neuronx-lite");
    program_.inputs = neff_.inputs();
    program_.outputs = neff_.outputs();
    check_signature();
    if (neff_.files().count("sg00/constants.bin") != 0) {
      const auto constants = neff_.file("sg00/constants.bin");
      program_.constants.assign(constants.begin(), constants.end());
    }
    program_.arena_bytes = bounded(root_.at("arena_bytes"), "arena_bytes", kMaxBytes);
    parse_buffers();
    parse_values();
    parse_steps();
    check_outputs_written();
    return std::move(program_);
  }

 private:
  static void check_variable(const neff::Variable& variable) {
    NXL_CHECK(variable.has_shape, kInvalid, "'", variable.name, "' states no dtype and shape");
    NXL_CHECK(variable.bytes <= kMaxBytes, kInvalid, "'", variable.name, "' has ", variable.bytes,
              " bytes, the limit is ", kMaxBytes);
    // The reader has checked the size against dtype and shape; NRT describes a dimension in 32 bits.
    for (const int64_t extent : variable.shape) {
      NXL_CHECK(extent >= 0 && extent <= UINT32_MAX, kInvalid, "'", variable.name, "' has a dimension of ", extent);
    }
  }

  void check_signature() {
    for (const auto& input : program_.inputs) check_variable(input);
    input_aliased_.assign(program_.inputs.size(), false);
    output_written_.assign(program_.outputs.size(), false);
    for (const auto& output : program_.outputs) {
      check_variable(output);
      if (output.alias_input < 0) continue;
      const auto index = static_cast<size_t>(output.alias_input);
      NXL_CHECK(index < program_.inputs.size(), kInvalid, "'", output.name, "' aliases input ", index, " of ",
                program_.inputs.size());
      NXL_CHECK(output.bytes == program_.inputs[index].bytes, kInvalid, "'", output.name, "' has ", output.bytes,
                " bytes and aliases '", program_.inputs[index].name, "' of ", program_.inputs[index].bytes);
      input_aliased_[index] = true;
    }
  }

  Buffer parse_buffer(const Json& json, const std::string& what) {
    Buffer buffer;
    const std::string& kind = json.at("kind").as_string(what + " kind");
    buffer.bytes = bounded(json.at("bytes"), what + " bytes", kMaxBytes);
    if (kind == "input" || kind == "output") {
      buffer.kind = kind == "input" ? Buffer::Kind::kInput : Buffer::Kind::kOutput;
      const auto& variables = kind == "input" ? program_.inputs : program_.outputs;
      const uint64_t index = json.at("index").as_size(what + " index");
      NXL_CHECK(index < variables.size(), kInvalid, what, ": ", kind, " ", index, " of ", variables.size());
      NXL_CHECK(buffer.bytes == variables[index].bytes, kInvalid, what, " has ", buffer.bytes, " bytes, '",
                variables[index].name, "' has ", variables[index].bytes);
      buffer.index = static_cast<uint32_t>(index);
      return buffer;
    }
    NXL_CHECK(kind == "constant" || kind == "arena", kInvalid, what, ": unknown kind '", kind, "'");
    buffer.kind = kind == "constant" ? Buffer::Kind::kConstant : Buffer::Kind::kArena;
    const uint64_t total = kind == "constant" ? program_.constants.size() : program_.arena_bytes;
    buffer.offset = json.at("offset").as_size(what + " offset");
    NXL_CHECK(range_within(buffer.offset, buffer.bytes, total), kInvalid, what, ": ", buffer.bytes, " bytes at ",
              buffer.offset, " are outside the ", total, " bytes of the ", kind, " area");
    NXL_CHECK(buffer.offset % kArenaAlignment == 0, kInvalid, what, ": offset ", buffer.offset,
              " is not a multiple of ", kArenaAlignment);
    return buffer;
  }

  void parse_buffers() {
    const auto& array = bounded_array(root_.at("buffers"), "buffers", kMaxBuffers);
    program_.buffers.reserve(array.size());
    std::vector<bool> seen_inputs(program_.inputs.size());
    std::vector<bool> seen_outputs(program_.outputs.size());
    for (size_t i = 0; i < array.size(); ++i) {
      program_.buffers.push_back(parse_buffer(array[i], nth("buffer", i)));
      const Buffer& buffer = program_.buffers.back();
      if (buffer.kind != Buffer::Kind::kInput && buffer.kind != Buffer::Kind::kOutput) continue;
      auto seen = (buffer.kind == Buffer::Kind::kInput ? seen_inputs : seen_outputs).begin() + buffer.index;
      NXL_CHECK(!*seen, kInvalid, nth("buffer", i), " names the same variable as an earlier one");
      *seen = true;
    }
  }

  void parse_values() {
    const auto& array = bounded_array(root_.at("values"), "values", kMaxValues);
    program_.values.reserve(array.size());
    extents_.reserve(array.size());
    for (size_t i = 0; i < array.size(); ++i) {
      const std::string what = nth("value", i);
      Value value;
      const uint64_t buffer = array[i].at("buffer").as_size(what + " buffer");
      NXL_CHECK(buffer < program_.buffers.size(), kInvalid, what, ": buffer ", buffer, " of ", program_.buffers.size());
      value.buffer = static_cast<uint32_t>(buffer);
      const std::string& dtype = array[i].at("dtype").as_string(what + " dtype");
      const auto known = dtype_from_name(dtype);
      NXL_CHECK(known, kInvalid, what, ": unknown dtype '", dtype, "'");
      value.dtype = *known;
      bounded_array(array[i].at("shape"), what + " shape", kMaxRank);
      value.shape = array[i].at("shape").as_ints(what + " shape");
      bounded_array(array[i].at("strides"), what + " strides", kMaxRank);
      value.strides = array[i].at("strides").as_ints(what + " strides");
      value.offset = array[i].at("offset").as_int(what + " offset");
      extents_.push_back(checked_extent(value, program_.buffers[value.buffer].bytes, what));
      program_.values.push_back(std::move(value));
    }
  }

  std::vector<uint32_t> parse_operands(const Json& json, const std::string& what) const {
    const auto& array = bounded_array(json, what, kMaxOperands);
    std::vector<uint32_t> operands;
    operands.reserve(array.size());
    for (const Json& entry : array) {
      const uint64_t value = entry.as_size(what);
      NXL_CHECK(value < program_.values.size(), kInvalid, what, ": value ", value, " of ", program_.values.size());
      operands.push_back(static_cast<uint32_t>(value));
    }
    return operands;
  }

  void parse_steps() {
    const auto& array = bounded_array(root_.at("steps"), "steps", kMaxSteps);
    program_.steps.reserve(array.size());
    for (size_t i = 0; i < array.size(); ++i) {
      Step step;
      step.op = array[i].at("op").as_string(nth("step", i) + " op");
      NXL_CHECK(!step.op.empty() && step.op.size() <= kMaxOpName, kInvalid, nth("step", i),
                ": an operation's name has ", step.op.size(), " characters, it may have 1 to ", kMaxOpName);
      const std::string what = nth("step", i) + " (" + step.op + ")";
      step.inputs = parse_operands(array[i].at("in"), what + " in");
      step.outputs = parse_operands(array[i].at("out"), what + " out");
      if (const Json* attributes = array[i].find("attrs")) {
        attributes->as_object(what + " attrs");
        step.attributes = *attributes;
      }
      check_step_outputs(step, what);
      program_.steps.push_back(std::move(step));
    }
  }

  // Aliased outputs and their inputs are one place.
  Place place_of(const Buffer& buffer) const {
    switch (buffer.kind) {
      case Buffer::Kind::kOutput: {
        const int alias = program_.outputs[buffer.index].alias_input;
        if (alias >= 0) return {Place::Space::kInput, static_cast<uint32_t>(alias), 0};
        return {Place::Space::kOutput, buffer.index, 0};
      }
      case Buffer::Kind::kInput:
        return {Place::Space::kInput, buffer.index, 0};
      case Buffer::Kind::kConstant:
        return {Place::Space::kConstant, 0, buffer.offset};
      case Buffer::Kind::kArena:
        break;
    }
    return {Place::Space::kArena, 0, buffer.offset};
  }

  void check_step_outputs(const Step& step, const std::string& what) {
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      const Value& value = program_.values[step.outputs[i]];
      const Buffer& buffer = program_.buffers[value.buffer];
      const Place place = place_of(buffer);
      NXL_CHECK(place.space != Place::Space::kConstant, kInvalid, what, " writes value ", step.outputs[i],
                ", which is a constant");
      NXL_CHECK(place.space != Place::Space::kInput || input_aliased_[place.index], kInvalid, what, " writes value ",
                step.outputs[i], ", which is in input ", place.index, "; no output aliases that input");
      NXL_CHECK(elements_disjoint(value), kInvalid, what, " writes value ", step.outputs[i],
                ", whose elements overlap each other");
      if (place.space == Place::Space::kOutput) output_written_[place.index] = true;
      for (size_t j = 0; j < i; ++j) check_separate(step.outputs[j], step.outputs[i], what);
    }
  }

  // Two results of one step must not share bytes; windows that interleave inside one range are told apart by marking.
  void check_separate(uint32_t left, uint32_t right, const std::string& what) const {
    const Place a = place_of(program_.buffers[program_.values[left].buffer]);
    const Place b = place_of(program_.buffers[program_.values[right].buffer]);
    if (a.space != b.space || a.index != b.index) return;
    const Extent x{a.begin + extents_[left].begin, a.begin + extents_[left].end};
    const Extent y{b.begin + extents_[right].begin, b.begin + extents_[right].end};
    if (x.empty() || y.empty() || !x.overlaps(y)) return;
    NXL_CHECK(windows_interleave(program_.values[left], a.begin, program_.values[right], b.begin), kInvalid, what,
              ": its results, values ", left, " and ", right, ", share memory");
  }

  const neff::Neff& neff_;
  const Json& root_;
  Program program_;
  std::vector<Extent> extents_;  // of values, in their buffers
  std::vector<bool> input_aliased_;
  std::vector<bool> output_written_;

  void check_outputs_written() const {
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const auto& output = program_.outputs[i];
      NXL_CHECK(output_written_[i] || output.alias_input >= 0 || output.bytes == 0, kInvalid, "no step writes '",
                output.name, "'");
    }
  }
};

}  // namespace

Program Program::from_neff(const neff::Neff& neff) {
  const auto bytes = neff.file("sg00/program.json");
  const Json root = Json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return Parser(neff, root).parse();
}

}  // namespace nxl::host
