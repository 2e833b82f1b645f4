// SPDX-License-Identifier: Apache-2.0
// What each fuzz target of the wire formats tells the mutation driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace nxl::kv::test {

// A well-formed frame, another one for each number and state of `random`.
std::vector<std::byte> good_frame(std::mt19937_64& random, uint64_t number);
// True when the reader takes these bytes for a frame.
bool accepted(const std::vector<std::byte>& bytes);

}  // namespace nxl::kv::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
