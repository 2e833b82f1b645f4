// SPDX-License-Identifier: Apache-2.0
// Text of the JSON files, and the container around them.
#include "program_builder.h"

#include <sstream>

#include "core/dtype.h"
#include "neff/writer.h"

namespace nxl::host::testing {
namespace {

template <typename T>
std::string list(const std::vector<T>& items) {
  std::ostringstream out;
  out << '[';
  for (size_t i = 0; i < items.size(); ++i) out << (i ? "," : "") << items[i];
  out << ']';
  return out.str();
}

int append(std::vector<std::string>& to, std::string json) {
  to.push_back(std::move(json));
  return static_cast<int>(to.size()) - 1;
}

std::string variable(const std::string& name, const char* type, int id, const std::vector<int64_t>& shape,
                     const std::string& dtype, const std::string& alias) {
  uint64_t bytes = dtype_size(*dtype_from_name(dtype));
  for (const int64_t extent : shape) bytes *= static_cast<uint64_t>(extent);
  std::ostringstream out;
  out << '"' << name << R"(":{"type":")" << type << R"(","var_id":)" << id << R"(,"size":)" << bytes << R"(,"dtype":")"
      << dtype << R"(","shape":)" << list(shape);
  if (!alias.empty()) out << R"(,"alias":")" << alias << '"';
  out << '}';
  return out.str();
}

}  // namespace

int ProgramBuilder::input(const std::vector<int64_t>& shape, const std::string& dtype) {
  variables_.push_back(variable("input" + std::to_string(inputs_), "input", inputs_, shape, dtype, ""));
  return inputs_++;
}

int ProgramBuilder::output(const std::vector<int64_t>& shape, const std::string& dtype, const std::string& alias) {
  variables_.push_back(variable("output" + std::to_string(outputs_), "output", outputs_, shape, dtype, alias));
  return outputs_++;
}

int ProgramBuilder::buffer(const std::string& json) { return append(buffers_, json); }
int ProgramBuilder::value(const std::string& json) { return append(values_, json); }
void ProgramBuilder::step(const std::string& json) { append(steps_, json); }

int ProgramBuilder::dense(int buffer, const std::vector<int64_t>& shape, const std::string& dtype) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return value(R"({"buffer":)" + std::to_string(buffer) + R"(,"dtype":")" + dtype + R"(","shape":)" + list(shape) +
               R"(,"strides":)" + list(strides) + R"(,"offset":0})");
}

void ProgramBuilder::step(const std::string& op, const std::vector<int>& in, const std::vector<int>& out) {
  step(R"({"op":")" + op + R"(","in":)" + list(in) + R"(,"out":)" + list(out) + R"(,"attrs":{}})");
}

int ProgramBuilder::input_buffer(int index, uint64_t bytes) {
  return buffer(R"({"kind":"input","index":)" + std::to_string(index) + R"(,"bytes":)" + std::to_string(bytes) + "}");
}

int ProgramBuilder::output_buffer(int index, uint64_t bytes) {
  return buffer(R"({"kind":"output","index":)" + std::to_string(index) + R"(,"bytes":)" + std::to_string(bytes) + "}");
}

std::vector<std::byte> ProgramBuilder::neff(const std::string& name) const {
  neff::Contents contents;
  contents.name = name;
  contents.build_version = "host runtime tests";
  contents.files["neff.json"] =
      R"({"version":1,"target":")" + target_ + R"(","compiler":"tests","name":")" + name + R"("})";
  std::string variables;
  for (const std::string& text : variables_) variables += (variables.empty() ? "" : ",") + text;
  contents.files["sg00/def.json"] = R"({"version":1,"target":")" + target_ + R"(","var":{)" + variables + "}}";
  contents.files["sg00/program.json"] = !program_.empty()
                                            ? program_
                                            : R"({"version":)" + std::to_string(version_) + R"(,"arena_bytes":)" +
                                                  std::to_string(arena_bytes_) + R"(,"buffers":)" + list(buffers_) +
                                                  R"(,"values":)" + list(values_) + R"(,"steps":)" + list(steps_) + "}";
  if (!constants_.empty()) contents.files["sg00/constants.bin"] = constants_;
  return neff::write(contents);
}

std::vector<std::byte> copy_neff(int64_t elements) {
  ProgramBuilder builder;
  const auto bytes = static_cast<uint64_t>(elements) * 4;
  const int in = builder.input_buffer(builder.input({elements}), bytes);
  const int out = builder.output_buffer(builder.output({elements}), bytes);
  builder.step("copy", {builder.dense(in, {elements})}, {builder.dense(out, {elements})});
  return builder.neff("copy");
}

std::vector<std::byte> add_neff(int64_t elements) {
  ProgramBuilder builder;
  const auto bytes = static_cast<uint64_t>(elements) * 4;
  const int left = builder.input_buffer(builder.input({elements}), bytes);
  const int right = builder.input_buffer(builder.input({elements}), bytes);
  const int out = builder.output_buffer(builder.output({elements}), bytes);
  builder.step("add", {builder.dense(left, {elements}), builder.dense(right, {elements})},
               {builder.dense(out, {elements})});
  return builder.neff("add");
}

std::vector<std::byte> accumulate_neff(int64_t elements) {
  ProgramBuilder builder;
  const auto bytes = static_cast<uint64_t>(elements) * 4;
  const int sum = builder.input_buffer(builder.input({elements}), bytes);
  const int addend = builder.input_buffer(builder.input({elements}), bytes);
  builder.output({elements}, "f32", "input0");
  const int value = builder.dense(sum, {elements});
  builder.step("add", {value, builder.dense(addend, {elements})}, {value});
  return builder.neff("accumulate");
}

}  // namespace nxl::host::testing
