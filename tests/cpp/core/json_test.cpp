// SPDX-License-Identifier: Apache-2.0
// The JSON reader: what it accepts, what it refuses and where, and its limits.
#include "core/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nxl {
namespace {

std::string error_of(std::string_view text) {
  try {
    Json::parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

TEST(Json, ReadsEveryKind) {
  const Json json = Json::parse(R"( {"a": [1, -2.5, true, null, "x"], "b": {"c": 1e3}, "n": -9223372036854775808} )");
  const Json::Array& items = json.at("a").as_array("a");
  ASSERT_EQ(items.size(), 5u);
  EXPECT_EQ(items[0].as_int("i"), 1);
  EXPECT_EQ(items[0].as_double("i"), 1.0);
  EXPECT_EQ(items[1].as_double("d"), -2.5);
  EXPECT_TRUE(items[2].as_bool("b"));
  EXPECT_TRUE(items[3].is_null());
  EXPECT_EQ(items[4].as_string("s"), "x");
  EXPECT_EQ(json.at("b").at("c").as_double("c"), 1000.0);
  EXPECT_EQ(json.at("n").as_int("n"), INT64_MIN);
  EXPECT_EQ(json.find("missing"), nullptr);
  EXPECT_EQ(items[0].find("not an object"), nullptr);
  EXPECT_EQ(Json::parse("[3,4]").as_ints("dims"), (std::vector<int64_t>{3, 4}));
  EXPECT_TRUE(Json::parse("{}").as_object("o").empty());
  EXPECT_TRUE(Json::parse("[ ]").as_array("a").empty());
}

TEST(Json, DecodesEscapes) {
  EXPECT_EQ(Json::parse(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\ud83d\ude00")").as_string("s"),
            "\"\\/\b\f\n\r\tA\u00e9\u20ac\U0001F600");
  EXPECT_EQ(Json::parse(R"("\u0000")").as_string("s"), std::string(1, '\0'));
  EXPECT_EQ(Json::parse("\"\u00e9\u20ac\U0001F600\"").as_string("s"), "\u00e9\u20ac\U0001F600");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[",
                           "\"",
                           "[1,]",
                           "{\"a\":1,}",
                           "{\"a\" 1}",
                           "{a:1}",
                           "[1 2]",
                           "nul",
                           "tru",
                           "TRUE",
                           "NaN",
                           "Infinity",
                           "-",
                           "+1",
                           "01",
                           "-01",
                           "1.",
                           ".5",
                           "1e",
                           "1e+",
                           "0x10",
                           "'a'",
                           "[1]x",
                           "1 2",
                           "{\"a\":1}}",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\u12G4\"",
                           "\"\\ud800\"",
                           "\"\\ud800\\u0041\"",
                           "\"\\udc00\"",
                           "\"a\nb\"",
                           "// x\n1",
                           "\xEF\xBB\xBF"
                           "1"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
}

TEST(Json, RefusesBytesThatAreNotUtf8) {
  for (const char* text :
       {"\"\x80\"", "\"\xC0\x80\"", "\"\xC3\"", "\"\xE0\x80\x80\"", "\"\xED\xA0\x80\"", "\"\xF0\x80\x80\x80\"",
        "\"\xF4\x90\x80\x80\"", "\"\xF5\x80\x80\x80\"", "\"\xE2\x82", "\"\xFF\""}) {
    EXPECT_NE(error_of(text).find("UTF-8"), std::string::npos) << text;
  }
}

TEST(Json, NamesTheByteOffset) {
  EXPECT_NE(error_of("[1, 2, x]").find("byte 7"), std::string::npos);
  EXPECT_NE(error_of("[1] trailing").find("byte 4"), std::string::npos);
}

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_NE(error_of(R"({"a":1,"a":2})").find("duplicate key 'a'"), std::string::npos);
  EXPECT_NE(error_of(R"({"a":1,"\u0061":2})").find("duplicate key 'a'"), std::string::npos);
}

TEST(Json, LimitsDepthTo64) {
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_NE(error_of(std::string(65, '[') + std::string(65, ']')).find("64"), std::string::npos);
  EXPECT_NE(error_of(std::string(1000000, '[')), "");
}

TEST(Json, LimitsIntegersTo64Bits) {
  EXPECT_EQ(Json::parse("9223372036854775807").as_int("i"), INT64_MAX);
  EXPECT_NE(error_of("9223372036854775808").find("64 bits"), std::string::npos);
  EXPECT_NE(error_of("-9223372036854775809"), "");
  EXPECT_EQ(Json::parse("9223372036854775808.0").as_double("d"), 9223372036854775808.0);
  EXPECT_NE(error_of("1e999").find("double"), std::string::npos);
}

TEST(Json, LimitsTheNumberOfValues) {
  std::string text = "[0";
  for (size_t i = 0; i < (size_t{4} << 20); ++i) text += ",0";
  EXPECT_NE(error_of(text + "]").find("values"), std::string::npos);
}

TEST(Json, AccessorsNameTheFieldAndBothKinds) {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      return error.what();
    }
    return "";
  };
  const Json text = Json::parse("\"x\"");
  EXPECT_EQ(message([&] { text.as_int("var_id"); }), "var_id must be an integer, it is a string");
  EXPECT_EQ(message([&] { text.as_bool("f"); }), "f must be true or false, it is a string");
  EXPECT_EQ(message([&] { text.as_double("f"); }), "f must be a number, it is a string");
  EXPECT_EQ(message([&] { text.as_array("f"); }), "f must be an array, it is a string");
  EXPECT_EQ(message([&] { text.as_object("f"); }), "f must be an object, it is a string");
  EXPECT_EQ(message([] { Json::parse("1").as_string("f"); }), "f must be a string, it is an integer");
  EXPECT_EQ(message([] { Json::parse("-1").as_size("size"); }), "size must be an integer >= 0, it is -1");
  EXPECT_EQ(message([] { Json::parse("[1,2.5]").as_ints("shape"); }), "shape must be an integer, it is a number");
  EXPECT_EQ(message([] { Json::parse("{}").at("var"); }), "JSON: the key 'var' is missing");
}

}  // namespace
}  // namespace nxl
