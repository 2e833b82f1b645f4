// SPDX-License-Identifier: Apache-2.0
// Log lines of the host runtime on stderr, filtered by NEURON_RT_LOG_LEVEL (ERROR, WARNING, INFO, DEBUG; default
// WARNING).
#pragma once

#include <string>

#include "core/error.h"

namespace nxl::host {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

// Reads the variable again; nrt_init calls it, because callers may set NEURON_RT_* up to that point.
void read_log_level();

// One write(2) a line, so that lines of several threads and processes do not mix. Never throws.
void log_line(LogLevel level, const std::string& text) noexcept;

template <typename... Parts>
[[gnu::cold]] void log_parts(LogLevel level, const Parts&... parts) {
  log_line(level, ::nxl::detail::concat(parts...));
}

}  // namespace nxl::host
