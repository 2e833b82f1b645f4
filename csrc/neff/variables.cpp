// SPDX-License-Identifier: Apache-2.0
// The signature of a NEFF: the input and output variables of sg00/def.json.
#include <algorithm>
#include <optional>
#include <utility>

#include "core/checked.h"
#include "core/error.h"
#include "core/json.h"
#include "neff/layout.h"
#include "neff/reader.h"

namespace nxl::neff {
namespace {

constexpr const char* kDefinition = "sg00/def.json";
constexpr size_t kMaxVariables = 65536;
constexpr size_t kMaxRank = 32;

struct Entry {
  uint64_t var_id = 0;
  std::string alias;  // empty: none
  Variable variable;
};

void check_name(const std::string& name) {
  const bool fits = !name.empty() && name.size() <= kNameLimit &&
                    std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  NXL_CHECK(fits, kInvalid, kDefinition, ": a variable's name must be 1 to ", kNameLimit,
            " printable ASCII characters");
}

// Reads dtype and shape where both are given, and checks them against the size.
void read_shape(const Json& json, const std::string& label, Variable& variable) {
  const Json* dtype = json.find("dtype");
  const Json* shape = json.find("shape");
  if (dtype == nullptr || shape == nullptr) return;
  const std::string& name = dtype->as_string(label + ": dtype");
  const std::optional<DType> known = dtype_from_name(name);
  NXL_CHECK(known.has_value(), kInvalid, label, ": unknown dtype '", name, "'");
  variable.dtype = *known;
  variable.shape = shape->as_ints(label + ": shape");
  NXL_CHECK(variable.shape.size() <= kMaxRank, kInvalid, label, ": ", variable.shape.size(),
            " dimensions, the limit is ", kMaxRank);
  std::optional<uint64_t> bytes = dtype_size(*known);
  bool empty = false;  // with one zero the others may be anything, so their product is not taken
  for (const int64_t size : variable.shape) {
    NXL_CHECK(size >= 0, kInvalid, label, ": a dimension of size ", size);
    empty = empty || size == 0;
  }
  for (const int64_t size : variable.shape) {
    if (bytes.has_value() && !empty) bytes = checked_mul(*bytes, static_cast<uint64_t>(size));
  }
  if (empty) bytes = 0;
  NXL_CHECK(bytes.has_value(), kInvalid, label, ": the shape has more than 2^64 bytes");
  NXL_CHECK(*bytes == variable.bytes, kInvalid, label, ": size is ", variable.bytes, " bytes, dtype and shape need ",
            *bytes);
  variable.has_shape = true;
}

Entry read_entry(const std::string& name, const Json& json) {
  check_name(name);
  const std::string label = std::string(kDefinition) + ": variable '" + name + "'";
  Entry entry;
  entry.variable.name = name;
  entry.var_id = json.at("var_id").as_size(label + ": var_id");
  entry.variable.bytes = json.at("size").as_size(label + ": size");
  if (const Json* alias = json.find("alias")) entry.alias = alias->as_string(label + ": alias");
  return entry;
}

void sort_entries(std::vector<Entry>& entries, const char* kind, bool consecutive) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.var_id < b.var_id; });
  for (size_t i = 0; i < entries.size() && consecutive; ++i) {
    NXL_CHECK(entries[i].var_id == i, kInvalid, kDefinition, ": ", kind, " '", entries[i].variable.name,
              "' has var_id ", entries[i].var_id, ", the ", kind, "s must count 0 to ", entries.size() - 1, " and ", i,
              " comes next");
  }
}

int alias_of(const Entry& output, const std::vector<Entry>& inputs) {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [&](const Entry& input) { return input.variable.name == output.alias; });
  NXL_CHECK(found != inputs.end(), kInvalid, kDefinition, ": output '", output.variable.name,
            "' is an alias of an input that does not exist");
  NXL_CHECK(found->variable.bytes == output.variable.bytes, kInvalid, kDefinition, ": output '", output.variable.name,
            "' has ", output.variable.bytes, " bytes, the input '", output.alias, "' whose memory it is has ",
            found->variable.bytes);
  return static_cast<int>(found - inputs.begin());
}

}  // namespace

void Neff::read_variables() {
  const bool host = target_ == "host";
  const auto definition = files_.find(kDefinition);
  if (definition == files_.end()) {
    NXL_CHECK(!host, kInvalid, "the archive has no '", kDefinition, "'");
    return;
  }
  const Json json = Json::parse({reinterpret_cast<const char*>(definition->second.data()), definition->second.size()});
  const Json* target = json.find("target");
  const bool says_host = target != nullptr && target->as_string("sg00/def.json: target") == "host";
  NXL_CHECK(says_host == host, kInvalid, "neff.json and ", kDefinition, " name different targets");
  const Json* variables = json.find("var");
  if (variables == nullptr && !host) return;
  const Json::Object& members = json.at("var").as_object("sg00/def.json: var");
  NXL_CHECK(members.size() <= kMaxVariables || !host, kInvalid, kDefinition, ": ", members.size(),
            " variables, the limit is ", kMaxVariables);

  std::vector<Entry> inputs;
  std::vector<Entry> outputs;
  for (const auto& [name, member] : members) {
    const std::string& type = member.at("type").as_string("sg00/def.json: type of a variable");
    const bool input = type == "input";
    if (!input && type != "output") {
      NXL_CHECK(!host, kInvalid, kDefinition, ": a variable of type '", type,
                "'; the host format has input and output");
      continue;
    }
    Entry entry = read_entry(name, member);
    const std::string label = std::string(kDefinition) + ": variable '" + name + "'";
    if (host) {
      read_shape(member, label, entry.variable);
      NXL_CHECK(entry.variable.has_shape, kInvalid, label, " must state dtype and shape");
    }
    NXL_CHECK(entry.alias.empty() || !input, kInvalid, label, ": only an output may be an alias");
    (input ? inputs : outputs).push_back(std::move(entry));
  }
  sort_entries(inputs, "input", host);
  sort_entries(outputs, "output", host);
  for (Entry& output : outputs) {
    if (!output.alias.empty()) output.variable.alias_input = alias_of(output, inputs);
    outputs_.push_back(std::move(output.variable));
  }
  for (Entry& input : inputs) inputs_.push_back(std::move(input.variable));
}

}  // namespace nxl::neff
