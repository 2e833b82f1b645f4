// SPDX-License-Identifier: Apache-2.0
// Reading of host programs: what is accepted, and every kind of hostile number.
#include "host/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.h"
#include "host/windows.h"
#include "program_builder.h"

namespace nxl::host::testing {
namespace {

Program parse(const ProgramBuilder& builder) {
  const auto bytes = builder.neff();
  return Program::from_neff(neff::Neff::open(bytes));
}

void expect_invalid(const ProgramBuilder& builder, const std::string& part) {
  try {
    parse(builder);
    ADD_FAILURE() << "accepted; expected a refusal that says: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::kInvalid, error.kind());
    EXPECT_NE(std::string::npos, std::string(error.what()).find(part)) << error.what();
  }
}

std::string value_json(int buffer, const std::string& shape, const std::string& strides, const std::string& offset,
                       const std::string& dtype = "f32") {
  return R"({"buffer":)" + std::to_string(buffer) + R"(,"dtype":")" + dtype + R"(","shape":)" + shape +
         R"(,"strides":)" + strides + R"(,"offset":)" + offset + "}";
}

// input0 f32[4], output0 f32[4], both with a buffer.
struct Base : ProgramBuilder {
  Base() {
    in = input_buffer(input({4}), 16);
    out = output_buffer(output({4}), 16);
  }
  // Values 0 and 1.
  void write_output() {
    const int from = dense(in, {4});
    step("copy", {from}, {dense(out, {4})});
  }
  int in, out;
};

TEST(ProgramTest, ReadsAWholeProgram) {
  Base builder;
  builder.set_arena_bytes(128);
  builder.set_constants(std::string(64, '\1'));
  const int arena = builder.buffer(R"({"kind":"arena","offset":64,"bytes":16})");
  const int constant = builder.buffer(R"({"kind":"constant","offset":0,"bytes":4})");
  const int x = builder.dense(builder.in, {4});
  const int scalar = builder.value(value_json(constant, "[4]", "[0]", "0"));
  builder.step("add", {x, scalar}, {builder.dense(arena, {4})});
  builder.step(R"({"op":"reverse","in":[2],"out":[3],"attrs":{"dims":[0]}})");
  builder.dense(builder.out, {4});
  const Program program = parse(builder);
  ASSERT_EQ(2u, program.steps.size());
  EXPECT_EQ("reverse", program.steps[1].op);
  EXPECT_EQ((std::vector<int64_t>{0}), program.steps[1].attributes.at("dims").as_ints("dims"));
  EXPECT_EQ(Buffer::Kind::kArena, program.buffers[2].kind);
  EXPECT_EQ(64u, program.buffers[2].offset);
  EXPECT_EQ(64u, program.constants.size());
  EXPECT_EQ((std::vector<int64_t>{0}), program.values[1].strides);
  EXPECT_EQ(128u, program.arena_bytes);
}

TEST(ProgramTest, BuffersStayInsideTheirArea) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"kind":"arena","offset":0,"bytes":65})", "outside"},
      {R"({"kind":"arena","offset":64,"bytes":1})", "outside"},
      {R"({"kind":"arena","offset":9223372036854775807,"bytes":64})", "outside"},
      {R"({"kind":"arena","offset":-64,"bytes":64})", "offset"},
      {R"({"kind":"arena","offset":0,"bytes":-1})", "bytes"},
      {R"({"kind":"arena","offset":0,"bytes":9223372036854775807})", "limit"},
      {R"({"kind":"arena","offset":4,"bytes":4})", "multiple"},
      {R"({"kind":"constant","offset":0,"bytes":1})", "outside"},
      {R"({"kind":"input","index":0,"bytes":16})", "same variable"},
      {R"({"kind":"input","index":1,"bytes":16})", "input 1 of 1"},
      {R"({"kind":"output","index":4294967296,"bytes":16})", "output 4294967296 of 1"},
      {R"({"kind":"register","index":0,"bytes":16})", "unknown kind"},
      {R"({"kind":7})", "kind"},
      {R"({"bytes":16})", "kind"},
      {R"([])", "kind"},
  };
  for (const auto& [json, part] : cases) {
    Base builder;
    builder.set_arena_bytes(64);
    builder.write_output();
    builder.buffer(json);
    SCOPED_TRACE(json);
    expect_invalid(builder, part);
  }
  ProgramBuilder other_size;
  other_size.input_buffer(other_size.input({4}), 12);
  expect_invalid(other_size, "input0");
}

TEST(ProgramTest, ValuesStayInsideTheirBuffer) {
  const std::pair<std::string, const char*> cases[] = {
      {value_json(0, "[5]", "[1]", "0"), "leaves its buffer"},
      {value_json(0, "[4]", "[1]", "1"), "leaves its buffer"},
      {value_json(0, "[2,2]", "[3,1]", "0"), "leaves its buffer"},
      {value_json(0, "[]", "[]", "4"), "leaves its buffer"},
      {value_json(0, "[4]", "[1]", "0", "f64"), "leaves its buffer"},
      {value_json(0, "[0]", "[1]", "5"), "leaves its buffer"},
      {value_json(0, "[2]", "[4611686018427387904]", "0"), "leaves its buffer"},
      {value_json(0, "[4611686018427387904,4]", "[0,0]", "0"), "overflows"},
      {value_json(0, "[9223372036854775807]", "[9223372036854775807]", "0"), "overflows"},
      {value_json(0, "[3,3]", "[4611686018427387904,4611686018427387904]", "0"), "leaves its buffer"},
      {value_json(0, "[1]", "[1]", "4611686018427387904"), "leaves its buffer"},
      {value_json(0, "[-1]", "[1]", "0"), "both must be >= 0"},
      {value_json(0, "[4]", "[-1]", "3"), "both must be >= 0"},
      {value_json(0, "[4]", "[1]", "-1"), "negative"},
      {value_json(0, "[4]", "[]", "0"), "strides"},
      {value_json(2, "[4]", "[1]", "0"), "buffer 2 of 2"},
      {value_json(0, "[4]", "[1]", "0", "f31"), "unknown dtype"},
      {value_json(0, "[1.5]", "[1]", "0"), "shape"},
      {R"({"buffer":0})", "dtype"},
  };
  for (const auto& [json, part] : cases) {
    Base builder;
    builder.write_output();
    builder.value(json);
    SCOPED_TRACE(json);
    expect_invalid(builder, part);
  }
  std::string deep = "[1";
  for (int i = 0; i < 32; ++i) deep += ",1";
  deep += "]";
  Base builder;
  builder.value(value_json(0, deep, deep, "0"));
  expect_invalid(builder, "limit is 32");
}

TEST(ProgramTest, WindowsAtTheEdgeAreAccepted) {
  Base builder;
  builder.write_output();
  builder.value(value_json(0, "[0]", "[1]", "4"));
  builder.value(value_json(0, "[1000000,4]", "[0,1]", "0"));
  builder.value(value_json(0, "[2]", "[3]", "0"));
  builder.value(value_json(0, "[16]", "[1]", "0", "u8"));
  EXPECT_EQ(6u, parse(builder).values.size());
}

TEST(ProgramTest, StepsNameWhatExists) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"op":"copy","in":[2],"out":[1]})", "value 2 of 2"},
      {R"({"op":"copy","in":[0],"out":[-1]})", "out"},
      {R"({"op":"copy","in":[0],"out":[1],"attrs":[]})", "attrs"},
      {R"({"op":"copy","in":0,"out":[1]})", "in"},
      {R"({"op":"","in":[0],"out":[1]})", "name"},
      {R"({"in":[0],"out":[1]})", "op"},
  };
  for (const auto& [json, part] : cases) {
    Base builder;
    builder.write_output();
    builder.step(json);
    SCOPED_TRACE(json);
    expect_invalid(builder, part);
  }
}

TEST(ProgramTest, OutputsGoWhereTheyMay) {
  {
    Base into_input;
    into_input.write_output();
    into_input.step("copy", {1}, {0});
    expect_invalid(into_input, "in input 0");
  }
  {
    Base into_constant;
    into_constant.set_constants(std::string(64, '\0'));
    into_constant.write_output();
    into_constant.step(
        "copy", {0}, {into_constant.dense(into_constant.buffer(R"({"kind":"constant","offset":0,"bytes":16})"), {4})});
    expect_invalid(into_constant, "constant");
  }
  {
    Base overlapping;
    overlapping.write_output();
    overlapping.step("copy", {0}, {overlapping.value(value_json(1, "[4]", "[0]", "0"))});
    expect_invalid(overlapping, "overlap each other");
  }
  {
    Base sliding;
    sliding.write_output();
    sliding.step("copy", {0}, {sliding.value(value_json(1, "[2,2]", "[1,1]", "0"))});
    expect_invalid(sliding, "overlap each other");
  }
  {
    Base twice;
    twice.write_output();
    twice.step("sort", {0}, {1, 1});
    expect_invalid(twice, "share memory");
  }
  {
    Base never;
    expect_invalid(never, "no step writes 'output0'");
  }
}

TEST(ProgramTest, ResultsOfOneStepMayInterleave) {
  Base columns;
  const int even = columns.value(value_json(columns.out, "[2]", "[2]", "0"));
  const int odd = columns.value(value_json(columns.out, "[2]", "[2]", "1"));
  const int source = columns.value(value_json(columns.in, "[2]", "[1]", "0"));
  columns.step("sort", {source, source}, {even, odd});
  EXPECT_EQ(1u, parse(columns).steps.size());
  Base touching;
  const int left = touching.value(value_json(touching.out, "[2]", "[2]", "0"));
  const int right = touching.value(value_json(touching.out, "[2]", "[1]", "1"));
  touching.step("sort", {touching.value(value_json(touching.in, "[2]", "[1]", "0"))}, {left, right});
  expect_invalid(touching, "share memory");
}

TEST(ProgramTest, ArenaBuffersThatOverlapAreOneMemory) {
  Base builder;
  builder.write_output();
  builder.set_arena_bytes(128);
  const int a = builder.buffer(R"({"kind":"arena","offset":0,"bytes":128})");
  const int b = builder.buffer(R"({"kind":"arena","offset":64,"bytes":64})");
  builder.step("sort", {0}, {builder.dense(a, {32}), builder.dense(b, {16})});
  expect_invalid(builder, "share memory");
}

TEST(ProgramTest, AliasedInputsMayBeWritten) {
  ProgramBuilder builder;
  const int state = builder.input_buffer(builder.input({4}), 16);
  const int other = builder.input_buffer(builder.input({4}), 16);
  const int result = builder.output_buffer(builder.output({4}, "f32", "input0"), 16);
  const int value = builder.dense(state, {4});
  builder.step("add", {value, builder.dense(other, {4})}, {value});
  builder.step("copy", {value}, {builder.dense(result, {4})});
  EXPECT_EQ(0, parse(builder).outputs[0].alias_input);
  builder.step("sort", {value}, {value, 2});  // by either name it is one memory
  expect_invalid(builder, "share memory");
}

TEST(ProgramTest, VersionAndTextAreChecked) {
  Base newer;
  newer.set_version(2);
  try {
    parse(newer);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::kUnsupported, error.kind());
  }
  for (const char* text : {"", "{", "[]", "null", R"({"version":1})", R"({"version":"1"})",
                           R"({"version":1,"arena_bytes":-1,"buffers":[],"values":[],"steps":[]})",
                           R"({"version":1,"arena_bytes":1e3,"buffers":[],"values":[],"steps":[]})",
                           R"({"version":1,"arena_bytes":9223372036854775807,"buffers":[],"values":[],"steps":[]})"}) {
    Base builder;
    builder.set_program(*text ? text : " ");
    EXPECT_THROW(parse(builder), Error) << text;
  }
}

// Any byte of the program's text may change: the answer is a program or an Error, never anything else.
TEST(ProgramTest, MutatedTextIsReadOrRefused) {
  const std::string good =
      R"({"version":1,"arena_bytes":128,"buffers":[{"kind":"input","index":0,"bytes":16},{"kind":"output","index":0,)"
      R"("bytes":16},{"kind":"arena","offset":64,"bytes":16}],"values":[{"buffer":0,"dtype":"f32","shape":[2,2],)"
      R"("strides":[1,2],"offset":0},{"buffer":1,"dtype":"f32","shape":[4],"strides":[1],"offset":0}],)"
      R"("steps":[{"op":"copy","in":[0],"out":[1],"attrs":{}}]})";
  std::mt19937 random(7);
  int accepted = 0, refused = 0;
  const std::string alphabet = "0123456789-,[]{}\":e.f";
  for (int round = 0; round < 4000; ++round) {
    std::string text = good;
    for (unsigned change = 0; change <= random() % 3; ++change) {
      text[random() % text.size()] = alphabet[random() % alphabet.size()];
    }
    Base builder;
    builder.set_program(text);
    try {
      const Program program = parse(builder);
      for (const Value& value : program.values) {
        const Extent extent = checked_extent(value, program.buffers[value.buffer].bytes, "value");
        ASSERT_LE(extent.end, program.buffers[value.buffer].bytes);
      }
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_LT(0, accepted);
  EXPECT_LT(0, refused);
}

// elements_disjoint never calls an overlapping window disjoint: compared with marking every element.
TEST(WindowsTest, DisjointAgreesWithMarking) {
  std::mt19937 random(11);
  int disjoint = 0;
  for (int round = 0; round < 5000; ++round) {
    Value value;
    value.dtype = DType::kInt8;
    const unsigned rank = random() % 4;
    for (unsigned d = 0; d < rank; ++d) {
      value.shape.push_back(random() % 4);
      value.strides.push_back(random() % 9);
    }
    std::vector<int64_t> elements{0};
    for (unsigned d = 0; d < rank; ++d) {
      std::vector<int64_t> next;
      for (const int64_t base : elements) {
        for (int64_t i = 0; i < value.shape[d]; ++i) next.push_back(base + i * value.strides[d]);
      }
      elements = std::move(next);
    }
    std::sort(elements.begin(), elements.end());
    const bool truly = std::adjacent_find(elements.begin(), elements.end()) == elements.end();
    if (elements_disjoint(value)) {
      ++disjoint;
      EXPECT_TRUE(truly);
    }
    if (!elements.empty()) {
      EXPECT_EQ(static_cast<uint64_t>(elements.back() + 1), checked_extent(value, 1000, "v").end);
    }
  }
  EXPECT_LT(500, disjoint);
}

}  // namespace
}  // namespace nxl::host::testing
