// SPDX-License-Identifier: Apache-2.0
// A strict, bounded JSON reader for the files inside a NEFF. Why our own: no JSON library comes with torch or g++,
// the wheel must build offline from torch alone, and the input is hostile, so depth and sizes are limited here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/api.h"
#include "core/error.h"

namespace nxl {

class NXL_API Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json, std::less<>>;

  // Throws Error(kInvalid) with the byte offset: trailing bytes, depth over 64, duplicate keys, bad UTF-8 escapes,
  // integers outside int64 (kept as double only when written with a fraction or an exponent).
  static Json parse(std::string_view text);

  Json() = default;
  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }

  // Accessors throw Error(kInvalid) that names `what` when the kind is another one.
  bool as_bool(std::string_view what) const;
  int64_t as_int(std::string_view what) const;
  uint64_t as_size(std::string_view what) const;  // an integer >= 0
  double as_double(std::string_view what) const;  // accepts an integer
  const std::string& as_string(std::string_view what) const;
  const Array& as_array(std::string_view what) const;
  const Object& as_object(std::string_view what) const;
  std::vector<int64_t> as_ints(std::string_view what) const;

  const Json& at(std::string_view key) const;    // throws when absent
  const Json* find(std::string_view key) const;  // nullptr when absent or not an object

 private:
  friend class JsonParser;
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

}  // namespace nxl
