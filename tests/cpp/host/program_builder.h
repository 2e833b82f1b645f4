// SPDX-License-Identifier: Apache-2.0
// Small host NEFFs for the tests, from a list of buffers, values and steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nxl::host::testing {

class ProgramBuilder {
 public:
  // dtype f32 unless said otherwise. Return the position in the signature.
  int input(const std::vector<int64_t>& shape, const std::string& dtype = "f32");
  int output(const std::vector<int64_t>& shape, const std::string& dtype = "f32", const std::string& alias = "");

  // Raw JSON entries; return their index.
  int buffer(const std::string& json);
  int value(const std::string& json);
  void step(const std::string& json);

  // A dense f32 value over a whole buffer, and a step on such values.
  int dense(int buffer, const std::vector<int64_t>& shape, const std::string& dtype = "f32");
  void step(const std::string& op, const std::vector<int>& in, const std::vector<int>& out);
  int input_buffer(int index, uint64_t bytes);
  int output_buffer(int index, uint64_t bytes);

  void set_version(int version) { version_ = version; }
  void set_target(const std::string& target) { target_ = target; }
  void set_arena_bytes(uint64_t bytes) { arena_bytes_ = bytes; }
  void set_constants(std::string data) { constants_ = std::move(data); }
  void set_program(std::string text) { program_ = std::move(text); }  // in place of the built one

  std::vector<std::byte> neff(const std::string& name = "test") const;

 private:
  std::vector<std::string> variables_;
  std::vector<std::string> buffers_;
  std::vector<std::string> values_;
  std::vector<std::string> steps_;
  int inputs_ = 0;
  int outputs_ = 0;
  int version_ = 1;
  std::string target_ = "host";
  uint64_t arena_bytes_ = 0;
  std::string constants_;
  std::string program_;
};

// y = x, both f32[elements].
std::vector<std::byte> copy_neff(int64_t elements);
// output0 = input0 + input1, f32[elements].
std::vector<std::byte> add_neff(int64_t elements);
// input0 += input1 in place: output0 aliases input0.
std::vector<std::byte> accumulate_neff(int64_t elements);

}  // namespace nxl::host::testing
