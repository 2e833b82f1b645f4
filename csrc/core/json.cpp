// SPDX-License-Identifier: Apache-2.0
// The JSON reader: recursive descent over RFC 8259, nothing more, with every size bounded.
#include "core/json.h"

#include <charconv>
#include <cstddef>

namespace nxl {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;
constexpr size_t kMaxValues = size_t{4} << 20;  // a value costs 56 bytes here and may cost 2 in the text
constexpr int kMaxDepth = 64;

const char* kind_name(size_t index) {
  constexpr const char* kNames[] = {"null", "a boolean", "an integer", "a number", "a string", "an array", "an object"};
  return kNames[index];
}

[[noreturn, gnu::cold]] void wrong_kind(std::string_view what, const char* wanted, size_t index) {
  throw_error(ErrorKind::kInvalid, detail::concat(what, " must be ", wanted, ", it is ", kind_name(index)));
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// Bytes of the well-formed UTF-8 sequence at the start of `text` (Unicode table 3-7), 0 when there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return tail(1) && tail(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool too_big = first == 0xF4 && byte(1) > 0x8F;
    return tail(1) && tail(2) && tail(3) && !overlong && !too_big ? 4 : 0;
  }
  return 0;
}

}  // namespace

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json document() {
    if (text_.size() > kMaxBytes)
      fail(detail::concat("the text has ", text_.size(), " bytes, the limit is ", kMaxBytes));
    Json result = value(0);
    skip_space();
    if (at_ != text_.size()) fail("bytes after the end of the document");
    return result;
  }

 private:
  [[noreturn, gnu::cold]] void fail(const std::string& why) const {
    throw_error(ErrorKind::kInvalid, detail::concat("JSON, byte ", at_, ": ", why));
  }

  int peek() const { return at_ < text_.size() ? static_cast<uint8_t>(text_[at_]) : -1; }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
      ++at_;
    }
  }

  void expect(char c, const char* where) {
    skip_space();
    if (peek() != static_cast<uint8_t>(c)) fail(detail::concat("expected '", c, "' ", where));
    ++at_;
  }

  Json value(int depth) {
    skip_space();
    if (++values_ > kMaxValues) fail(detail::concat("more than ", kMaxValues, " values"));
    Json result;
    switch (peek()) {
      case '{':
        object(result, depth + 1);
        break;
      case '[':
        array(result, depth + 1);
        break;
      case '"':
        result.value_ = string();
        break;
      case 't':
        word("true");
        result.value_ = true;
        break;
      case 'f':
        word("false");
        result.value_ = false;
        break;
      case 'n':
        word("null");
        break;
      case -1:
        fail("the text ends where a value should start");
      default:
        number(result);
    }
    return result;
  }

  void word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) fail("not a JSON value");
    at_ += expected.size();
  }

  void check_depth(int depth) const {
    if (depth > kMaxDepth) fail(detail::concat("nested deeper than ", kMaxDepth));
  }

  void object(Json& result, int depth) {
    check_depth(depth);
    Json::Object members;
    ++at_;
    skip_space();
    if (peek() == '}') {
      ++at_;
    } else {
      for (;;) {
        skip_space();
        if (peek() != '"') fail("expected a string as the key of an object");
        std::string key = string();
        expect(':', "after the key");
        const auto [entry, inserted] = members.try_emplace(std::move(key));
        if (!inserted) fail(detail::concat("duplicate key '", entry->first, "'"));
        entry->second = value(depth);
        skip_space();
        if (peek() == ',') {
          ++at_;
          continue;
        }
        expect('}', "or ',' in an object");
        break;
      }
    }
    result.value_ = std::move(members);
  }

  void array(Json& result, int depth) {
    check_depth(depth);
    Json::Array items;
    ++at_;
    skip_space();
    if (peek() == ']') {
      ++at_;
    } else {
      for (;;) {
        items.push_back(value(depth));
        skip_space();
        if (peek() == ',') {
          ++at_;
          continue;
        }
        expect(']', "or ',' in an array");
        break;
      }
    }
    result.value_ = std::move(items);
  }

  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const int c = peek();
      uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<uint32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<uint32_t>(c - 'A' + 10);
      } else {
        fail("\\u needs four hexadecimal digits");
      }
      code = code * 16 + digit;
    }
    return code;
  }

  void escape(std::string& out) {
    const int c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out += static_cast<char>(c);
        return;
      case 'b':
        out += '\b';
        return;
      case 'f':
        out += '\f';
        return;
      case 'n':
        out += '\n';
        return;
      case 'r':
        out += '\r';
        return;
      case 't':
        out += '\t';
        return;
      case 'u':
        break;
      default:
        --at_;
        fail("unknown escape in a string");
    }
    uint32_t code = hex4();
    if (code >= 0xDC00 && code <= 0xDFFF) fail("a low surrogate without its high one");
    if (code >= 0xD800 && code <= 0xDBFF) {
      if (text_.substr(at_, 2) != "\\u") fail("a high surrogate without its low one");
      at_ += 2;
      const uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail("a high surrogate without its low one");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(out, code);
  }

  std::string string() {
    std::string out;
    ++at_;
    for (;;) {
      const int c = peek();
      if (c < 0) fail("the text ends inside a string");
      if (c == '"') break;
      if (c < 0x20) fail("a control character inside a string");
      if (c == '\\') {
        ++at_;
        escape(out);
        continue;
      }
      const size_t length = utf8_length(text_.substr(at_, 4));
      if (length == 0) fail("bytes that are not UTF-8 inside a string");
      out.append(text_, at_, length);
      at_ += length;
    }
    ++at_;
    return out;
  }

  void digits() {
    if (peek() < '0' || peek() > '9') fail("not a JSON value");
    while (peek() >= '0' && peek() <= '9') ++at_;
  }

  void number(Json& result) {
    const size_t start = at_;
    bool integer = true;
    if (peek() == '-') ++at_;
    const bool leading_zero = peek() == '0';
    const size_t first_digit = at_;
    digits();
    if (leading_zero && at_ - first_digit > 1) fail("a number with a leading zero");
    if (peek() == '.') {
      integer = false;
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      integer = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    const char* const first = text_.data() + start;
    const char* const last = text_.data() + at_;
    if (integer) {
      int64_t parsed = 0;
      if (std::from_chars(first, last, parsed).ec != std::errc()) fail("an integer outside the range of 64 bits");
      result.value_ = parsed;
    } else {
      double parsed = 0;
      if (std::from_chars(first, last, parsed).ec != std::errc()) fail("a number outside the range of a double");
      result.value_ = parsed;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t values_ = 0;
};

Json Json::parse(std::string_view text) { return JsonParser(text).document(); }

bool Json::as_bool(std::string_view what) const {
  if (const auto* held = std::get_if<bool>(&value_)) return *held;
  wrong_kind(what, "true or false", value_.index());
}

int64_t Json::as_int(std::string_view what) const {
  if (const auto* held = std::get_if<int64_t>(&value_)) return *held;
  wrong_kind(what, "an integer", value_.index());
}

uint64_t Json::as_size(std::string_view what) const {
  const int64_t held = as_int(what);
  NXL_CHECK(held >= 0, kInvalid, what, " must be an integer >= 0, it is ", held);
  return static_cast<uint64_t>(held);
}

double Json::as_double(std::string_view what) const {
  if (const auto* held = std::get_if<double>(&value_)) return *held;
  if (const auto* held = std::get_if<int64_t>(&value_)) return static_cast<double>(*held);
  wrong_kind(what, "a number", value_.index());
}

const std::string& Json::as_string(std::string_view what) const {
  if (const auto* held = std::get_if<std::string>(&value_)) return *held;
  wrong_kind(what, "a string", value_.index());
}

const Json::Array& Json::as_array(std::string_view what) const {
  if (const auto* held = std::get_if<Array>(&value_)) return *held;
  wrong_kind(what, "an array", value_.index());
}

const Json::Object& Json::as_object(std::string_view what) const {
  if (const auto* held = std::get_if<Object>(&value_)) return *held;
  wrong_kind(what, "an object", value_.index());
}

std::vector<int64_t> Json::as_ints(std::string_view what) const {
  const Array& items = as_array(what);
  std::vector<int64_t> out;
  out.reserve(items.size());
  for (const Json& item : items) out.push_back(item.as_int(what));
  return out;
}

const Json& Json::at(std::string_view key) const {
  const Json* found = find(key);
  NXL_CHECK(found != nullptr, kInvalid, "JSON: the key '", key, "' is missing");
  return *found;
}

const Json* Json::find(std::string_view key) const {
  const auto* members = std::get_if<Object>(&value_);
  if (members == nullptr) return nullptr;
  const auto entry = members->find(key);
  return entry == members->end() ? nullptr : &entry->second;
}

}  // namespace nxl
