// SPDX-License-Identifier: Apache-2.0
// The log of the native half: lines on stderr, level from NEURON_LIBTORCH_LOG_LEVEL (default warning). Thread safe.
#pragma once

#include <string>

#include "core/api.h"
#include "core/error.h"

namespace nxl {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// The level is read from debug|info|warning|error|off at the first call; an unknown word counts as warning and is
// reported once.
NXL_API bool log_enabled(LogLevel level) noexcept;

// One write of `[libtorch_neuronx_lite] LEVEL message` and a newline. Never throws: a log line must not fail a call.
NXL_API void log_line(LogLevel level, const std::string& message) noexcept;

}  // namespace nxl

// The message is built only when the level is on: NXL_LOG(kInfo, "core ", core, " opened").
#define NXL_LOG(level, ...)                                                        \
  do {                                                                             \
    if (::nxl::log_enabled(::nxl::LogLevel::level)) {                              \
      ::nxl::log_line(::nxl::LogLevel::level, ::nxl::detail::concat(__VA_ARGS__)); \
    }                                                                              \
  } while (0)
