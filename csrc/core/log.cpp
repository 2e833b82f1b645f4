// SPDX-License-Identifier: Apache-2.0
// Log lines to stderr.
#include "core/log.h"

#include <strings.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>

namespace nxl {
namespace {

constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR", "OFF"};

void write_line(LogLevel level, const std::string& message) {
  std::string line = "[libtorch_neuronx_lite] ";
  line += kNames[static_cast<int>(level)];
  line += ' ';
  line += message;
  line += '\n';
  // One write, so that lines of several threads and ranks stay whole. A closed stderr is nobody's error.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

LogLevel level_from_environment() {
  const char* word = std::getenv("NEURON_LIBTORCH_LOG_LEVEL");
  if (word == nullptr || *word == '\0') return LogLevel::kWarning;
  for (int i = 0; i <= static_cast<int>(LogLevel::kOff); ++i) {
    if (strcasecmp(word, kNames[i]) == 0) return static_cast<LogLevel>(i);
  }
  write_line(LogLevel::kWarning, std::string("NEURON_LIBTORCH_LOG_LEVEL=") + word +
                                     " is not one of debug, info, warning, error, off; using warning");
  return LogLevel::kWarning;
}

}  // namespace

bool log_enabled(LogLevel level) noexcept {
  try {
    static const LogLevel threshold = level_from_environment();
    return level >= threshold;
  } catch (const std::exception&) {
    return false;
  }
}

void log_line(LogLevel level, const std::string& message) noexcept {
  try {
    write_line(level, message);
  } catch (const std::exception&) {
    // Out of memory while logging: the caller's own outcome matters more.
  }
}

}  // namespace nxl
