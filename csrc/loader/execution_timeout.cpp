// SPDX-License-Identifier: Apache-2.0
// NEURON_LIBTORCH_EXECUTION_TIMEOUT.
#include "loader/execution_timeout.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/error.h"

namespace nxl::loader {

std::chrono::milliseconds execution_timeout() {
  constexpr double kDefaultSeconds = 600;
  constexpr double kMostSeconds = 1e7;  // four months; keeps the deadline inside the clock's range
  const char* text = std::getenv("NEURON_LIBTORCH_EXECUTION_TIMEOUT");
  double seconds = kDefaultSeconds;
  if (text != nullptr && *text != '\0') {
    const std::string_view word = text;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), seconds);
    NXL_CHECK(error == std::errc() && end == word.data() + word.size() && seconds > 0 && seconds <= kMostSeconds,
              kInvalid, "NEURON_LIBTORCH_EXECUTION_TIMEOUT=", word, " must be a number of seconds above 0 and at most ",
              kMostSeconds);
  }
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace nxl::loader
