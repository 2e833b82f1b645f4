// SPDX-License-Identifier: Apache-2.0
// What the files that bind KvAgent share.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "kv/agent.h"

namespace nxl::bindings {

using Outcome = std::pair<int, std::string>;  // NRT_STATUS number and message

inline Outcome outcome(const Status& status) { return {status.code, status.message}; }

inline pybind11::bytes key_bytes(const kv::Key& key) { return {reinterpret_cast<const char*>(key.data()), sizeof key}; }

// Runs `call` without the GIL; what it returns is made into Python objects with it.
template <typename Call>
auto without_gil(Call call) {
  const pybind11::gil_scoped_release release;
  return call();
}

// Leases, descriptor lists, and everything that makes a transfer (kv_prepare.cpp).
void bind_kv_prepare(pybind11::module_& m, pybind11::class_<kv::Agent>& agent);

}  // namespace nxl::bindings
