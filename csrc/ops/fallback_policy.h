// SPDX-License-Identifier: Apache-2.0
// What happens when an operator runs on the host CPU: allowed, warned about once per operator, or refused; and counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace nxl::ops {

enum class FallbackMode { kAllow, kWarn, kError };

// The mode of NEURON_LIBTORCH_EAGER_FALLBACK=allow|warn|error, read once at the first fallback (default warn), unless
// set_fallback_mode() was called. An unknown value throws c10::ValueError that lists the choices.
__attribute__((visibility("default"))) FallbackMode fallback_mode();
__attribute__((visibility("default"))) const char* fallback_mode_name();
// "allow", "warn" or "error"; anything else throws as above.
__attribute__((visibility("default"))) void set_fallback_mode(const std::string& name);

// Operator name with overload ("aten::add.out") to the number of calls since the start or the last reset; operators
// that never fell back are absent.
__attribute__((visibility("default"))) std::map<std::string, uint64_t> fallback_counts();
__attribute__((visibility("default"))) uint64_t fallback_total();
__attribute__((visibility("default"))) void reset_fallback_counts();

}  // namespace nxl::ops
