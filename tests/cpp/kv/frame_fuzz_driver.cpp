// SPDX-License-Identifier: Apache-2.0
// A seeded mutation driver for LLVMFuzzerTestOneInput, for compilers without libFuzzer: --frames N --seed S, or
// --seconds N for at least that time and at least a million frames. It also holds the promise that no mutated frame is
// accepted: a frame whose checksums were not repaired must be refused.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kv/fuzz_target.h"

namespace {

using Bytes = std::vector<std::byte>;
using namespace nxl::kv::test;  // NOLINT: a program of its own

struct Mutator {
  std::mt19937_64 random;

  size_t pick(size_t below) { return below == 0 ? 0 : random() % below; }

  void mutate(Bytes& bytes) {
    for (size_t i = 1 + pick(4); i != 0; --i) {
      if (bytes.empty()) return;
      const size_t at = pick(bytes.size());
      switch (pick(5)) {
        case 0:
          bytes[at] ^= std::byte{static_cast<uint8_t>(1u << pick(8))};
          break;
        case 1:
          bytes[at] = std::byte{static_cast<uint8_t>(pick(2) == 0 ? 0xFF : 0)};
          break;
        case 2:
          bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
          break;
        case 3:
          bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), std::byte{static_cast<uint8_t>(pick(256))});
          break;
        default:
          bytes.resize(std::max<size_t>(1, at));
          break;
      }
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t frames = 100'000;
  uint64_t seed = 1;
  std::time_t end = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--frames") {
      frames = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (flag == "--seconds") {
      frames = 1'000'000;
      end = std::time(nullptr) + static_cast<std::time_t>(std::strtod(argv[i + 1], nullptr)) + 1;
    } else if (flag == "--seed") {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: %s [--frames N | --seconds N] [--seed S]\n", argv[0]);
      return 2;
    }
  }
  Mutator mutator{std::mt19937_64(seed)};
  uint64_t i = 0;
  for (; i < frames || std::time(nullptr) < end; ++i) {
    const Bytes good = good_frame(mutator.random, i);
    Bytes bad = good;
    mutator.mutate(bad);
    // Bytes behind a whole frame are the next frame's, no mutation of this one.
    const bool same = bad.size() >= good.size() && std::equal(good.begin(), good.end(), bad.begin());
    if (!same && accepted(bad)) {
      std::fprintf(stderr, "mutated frame %llu of seed %llu was accepted\n", static_cast<unsigned long long>(i),
                   static_cast<unsigned long long>(seed));
      return 1;
    }
    std::vector<uint8_t> input(bad.size() + 1);
    input[0] = static_cast<uint8_t>(mutator.pick(4));
    std::memcpy(input.data() + 1, bad.data(), bad.size());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu frames, seed %llu: no crash, none accepted\n", static_cast<unsigned long long>(i),
              static_cast<unsigned long long>(seed));
  return 0;
}
