// SPDX-License-Identifier: Apache-2.0
// A seeded mutation driver for LLVMFuzzerTestOneInput, for compilers without libFuzzer: --seconds N --seed S. It knows
// the container, so most mutations get past the header and the checksums. A crash leaves crash-<seed>-<run>.neff.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "neff/layout.h"
#include "neff/sample.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<std::byte>;
using nxl::neff::kHeaderBytes;

constexpr size_t kBlock = 512;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  Bytes next() {
    nxl::neff::Contents contents = pick(3) == 0 ? nxl::test::chip_contents() : nxl::test::host_contents();
    for (uint64_t i = pick(4); i != 0; --i) mutate_text(contents.files[any_key(contents.files)]);
    Bytes archive = nxl::neff::write_tar(contents.files);
    for (uint64_t i = pick(4); i != 0; --i) mutate_tar_header(archive);
    Bytes bytes = nxl::neff::with_header(contents, archive);
    for (uint64_t i = pick(8) == 0 ? pick(4) : 0; i != 0; --i) mutate_bytes(bytes, 0);
    if (pick(8) == 0) {
      bytes.resize(pick(bytes.size() + 1));
      if (pick(2) == 0) fix_data_size(bytes);
    }
    return bytes;
  }

 private:
  uint64_t pick(uint64_t below) { return below == 0 ? 0 : random_() % below; }

  template <typename Map>
  std::string any_key(const Map& map) {
    auto it = map.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(pick(map.size())));
    return it->first;
  }

  void mutate_text(std::string& text) {
    static const char* const kWords[] = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         "\"",
                                         ":",
                                         ",",
                                         "\\u0000",
                                         "\\ud800",
                                         "null",
                                         "true",
                                         "-1",
                                         "0",
                                         "1e999",
                                         "1.5",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "\"input\"",
                                         "\"output\"",
                                         "\"alias\":\"input0\",",
                                         "\"host\"",
                                         "\"shape\":[",
                                         "\"size\":",
                                         "\"var_id\":",
                                         "\x80"};
    const size_t at = pick(text.size() + 1);
    switch (pick(5)) {
      case 0:
        text.insert(at, kWords[pick(std::size(kWords))]);
        break;
      case 1:
        text.erase(at, pick(16));
        break;
      case 2:
        text.replace(at, pick(8), kWords[pick(std::size(kWords))]);
        break;
      case 3:
        text.insert(at, text.substr(pick(text.size() + 1), pick(64)));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(pick(256));
    }
  }

  // Changes a field of the header of some entry and, mostly, makes its checksum right again.
  void mutate_tar_header(Bytes& archive) {
    const size_t block = pick(archive.size() / kBlock) * kBlock;
    static const size_t kFields[] = {0, 1, 99, 124, 125, 135, 156, 157, 257, 263, 345, 346, 499};
    const size_t start = block + kFields[pick(std::size(kFields))];
    for (uint64_t i = 1 + pick(4); i != 0; --i) {
      static const uint8_t kValues[] = {0, 1, '.', '/', '0', '5', '7', 'x', 0x7F, 0x80, 0xFF};
      const size_t at = start + pick(6);
      if (at < block + kBlock) archive[at] = std::byte{kValues[pick(std::size(kValues))]};
    }
    if (pick(10) == 0) return;
    uint8_t* header = reinterpret_cast<uint8_t*>(archive.data() + block);
    std::memset(header + 148, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += header[i];
    std::snprintf(reinterpret_cast<char*>(header) + 148, 7, "%06o", sum);
  }

  void mutate_bytes(Bytes& bytes, size_t from) {
    if (bytes.size() > from) bytes[from + pick(bytes.size() - from)] ^= std::byte{static_cast<uint8_t>(1u << pick(8))};
  }

  static void fix_data_size(Bytes& bytes) {
    if (bytes.size() < kHeaderBytes) return;
    const uint64_t size = bytes.size() - kHeaderBytes;
    std::memcpy(bytes.data() + offsetof(nxl::neff::RawHeader, data_size), &size, sizeof(size));
  }

  std::mt19937_64 random_;
};

Bytes current;
std::string crash_file;

void keep_input() {
  std::ofstream out(crash_file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(current.data()), static_cast<std::streamsize>(current.size()));
  out.close();
  std::fprintf(stderr, "the input is in %s\n", crash_file.c_str());
}

void on_signal(int number) {
  keep_input();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

int main(int argc, char** argv) {
  double seconds = 5;
  uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--seconds") {
      seconds = std::strtod(argv[i + 1], nullptr);
    } else if (flag == "--seed") {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: %s [--seconds N] [--seed S]\n", argv[0]);
      return 2;
    }
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(keep_input);
#endif
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) std::signal(number, on_signal);
  Mutator mutator(seed);
  const std::time_t end = std::time(nullptr) + static_cast<std::time_t>(seconds) + 1;
  uint64_t runs = 0;
  for (; std::time(nullptr) < end; ++runs) {
    crash_file = "crash-" + std::to_string(seed) + "-" + std::to_string(runs) + ".neff";
    current = mutator.next();
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current.data()), current.size());
  }
  std::printf("%llu inputs, seed %llu: no crash\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
  return runs == 0 ? 1 : 0;
}
