// SPDX-License-Identifier: Apache-2.0
// The fuzz entry of the NEFF reader: any bytes give a NEFF or an Error, nothing else.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "neff/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto neff = nxl::neff::Neff::open(bytes, /*verify_digest=*/false);
    // Touch what was promised: every byte of every view, and the aliases.
    uint64_t sum = 0;
    for (const auto& [path, content] : neff.files()) {
      for (const std::byte byte : content) sum += std::to_integer<uint64_t>(byte);
    }
    for (const auto& output : neff.outputs()) {
      if (output.alias_input >= static_cast<int>(neff.inputs().size())) std::abort();
    }
    volatile uint64_t sink = sum;
    static_cast<void>(sink);
  } catch (const nxl::Error& error) {
    if (error.kind() != nxl::ErrorKind::kInvalid) std::abort();
  }
  return 0;
}
