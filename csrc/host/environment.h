// SPDX-License-Identifier: Apache-2.0
// Strict reading of numbers from environment variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace nxl::host {

// The whole of `text` as a decimal integer; nothing else around it.
std::optional<int64_t> parse_integer(std::string_view text);

// Nothing when the variable is unset or empty. Throws INVALID, naming variable, value and range, for anything else
// that is not an integer in [low, high].
std::optional<int64_t> environment_integer(const char* name, int64_t low, int64_t high);

}  // namespace nxl::host
