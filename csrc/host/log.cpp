// SPDX-License-Identifier: Apache-2.0
// The writer behind log_line.
#include "host/log.h"

#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace nxl::host {
namespace {

constexpr const char* kLevelNames[] = {"ERROR", "WARNING", "INFO", "DEBUG"};
std::atomic<int> threshold{static_cast<int>(LogLevel::kWarning)};

}  // namespace

void read_log_level() {
  const char* text = std::getenv("NEURON_RT_LOG_LEVEL");
  int level = static_cast<int>(LogLevel::kWarning);
  bool known = text == nullptr || *text == '\0' || strcasecmp(text, "WARN") == 0;
  for (int i = 0; !known && i < 4; ++i) {
    if (strcasecmp(text, kLevelNames[i]) == 0) {
      level = i;
      known = true;
    }
  }
  threshold.store(level, std::memory_order_relaxed);
  if (!known) {
    log_parts(LogLevel::kWarning, "NEURON_RT_LOG_LEVEL=", text,
              " is not one of ERROR, WARNING, INFO, DEBUG; WARNING is used");
  }
}

void log_line(LogLevel level, const std::string& text) noexcept {
  if (static_cast<int>(level) > threshold.load(std::memory_order_relaxed)) return;
  try {
    const std::string line =
        "[nrt_host " + std::to_string(getpid()) + "] " + kLevelNames[static_cast<int>(level)] + ": " + text + "\n";
    // A closed or full stderr must not disturb the work that is being reported on.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {
  }
}

}  // namespace nxl::host
