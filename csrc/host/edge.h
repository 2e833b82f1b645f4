// SPDX-License-Identifier: Apache-2.0
// The edge of the C interface: the only place where exceptions become statuses. Nothing is thrown past it.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/status.h"
#include "host/calls.h"
#include "host/faults.h"
#include "host/runtime.h"
#include "nrt_abi.h"

#define NXL_HOST_EXPORT extern "C" __attribute__((visibility("default")))

namespace nxl::host {

// The exception in flight as a status; call it inside a catch block only.
[[gnu::cold]] Status status_of_exception() noexcept;

// status_of_exception, logged as the outcome of `call`.
[[gnu::cold]] NRT_STATUS report_exception(Call call) noexcept;

// The number in an enumeration that a C caller filled: any int, while a C++ enumeration may hold its own values only.
template <typename Enum>
int raw_value(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int raw;
  std::memcpy(&raw, &value, sizeof(raw));
  return raw;
}

enum class Needs { kOpenRuntime, kNotClosed };

// Runs `body` (which returns NRT_STATUS) as the exported function `call`: state check, injected faults, translation.
template <Needs needs = Needs::kOpenRuntime, typename Body>
NRT_STATUS at_edge(Call call, Body&& body) noexcept {
  static_assert(std::is_same_v<std::invoke_result_t<Body>, NRT_STATUS>);
  const NRT_STATUS state = Runtime::state();
  if (state == NRT_CLOSED || (needs == Needs::kOpenRuntime && state != NRT_SUCCESS)) return state;
  try {
    if (const NRT_STATUS injected = Faults::instance().inject(call); injected != NRT_SUCCESS) return injected;
    return body();
  } catch (...) {
    return report_exception(call);
  }
}

}  // namespace nxl::host
