// SPDX-License-Identifier: Apache-2.0
// Numbers from environment variables.
#include "host/environment.h"

#include <charconv>
#include <cstdlib>

#include "host/refusal.h"

namespace nxl::host {

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> environment_integer(const char* name, int64_t low, int64_t high) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const auto value = parse_integer(text);
  if (!value || *value < low || *value > high) {
    refuse(NRT_INVALID, name, "=", text, " is not an integer from ", low, " to ", high);
  }
  return value;
}

}  // namespace nxl::host
