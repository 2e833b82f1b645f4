// SPDX-License-Identifier: Apache-2.0
// rng_bit_generator: counter-based generators, so the same state gives the same bits on every machine.
#include <array>
#include <bit>

#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

// Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
struct Philox {
  static constexpr size_t kWords = 4;
  static std::array<uint32_t, kWords> block(uint64_t key, uint64_t low, uint64_t high) {
    std::array<uint32_t, 4> c{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                              static_cast<uint32_t>(high >> 32)};
    auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
      c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
           static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    return c;
  }
};

// Threefry 2x32 with twenty rounds, from the same paper.
struct ThreeFry {
  static constexpr size_t kWords = 2;
  static std::array<uint32_t, kWords> block(uint64_t key, uint64_t low, uint64_t) {
    const uint32_t k[3] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                           0x1BD11BDA ^ static_cast<uint32_t>(key) ^ static_cast<uint32_t>(key >> 32)};
    constexpr int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    uint32_t x = static_cast<uint32_t>(low) + k[0], y = static_cast<uint32_t>(low >> 32) + k[1];
    for (int round = 0; round < 20; ++round) {
      x += y;
      y = std::rotl(y, rotations[round % 8]) ^ x;
      if (round % 4 == 3) {
        const auto injection = static_cast<uint32_t>(round / 4 + 1);
        x += k[injection % 3];
        y += k[(injection + 1) % 3] + injection;
      }
    }
    return {x, y};
  }
};

// State: key, counter (low, and high when the state has three words). Elements take whole 32-bit words in row-major
// order, two for 64-bit types; narrow types keep the low bits. The counter moves on by the blocks used.
template <typename Generator, typename T>
Kernel generate(const at::Tensor& state, const at::Tensor& next, const at::Tensor& bits) {
  at::Tensor dense = StepContext::scratch(bits.sizes(), bits.scalar_type());
  const auto width = static_cast<int64_t>(sizeof(T));
  return
      [state = state, next = next, dense, count = bits.numel(), loop = BoundLoop<2>({bits, dense}), width]() mutable {
        const Address from(state), to(next);
        const auto word = [](const at::Tensor& tensor, const Address& base, int64_t i) -> uint64_t& {
          return *reinterpret_cast<uint64_t*>(base.get() + i * tensor.stride(0) * 8);
        };
        const bool wide_counter = state.size(0) > 2;
        const uint64_t key = word(state, from, 0), low = word(state, from, 1),
                       high = wide_counter ? word(state, from, 2) : 0;
        constexpr int64_t words_each = sizeof(T) == 8 ? 2 : 1;
        constexpr int64_t elements_each = static_cast<int64_t>(Generator::kWords) / words_each;
        const int64_t blocks = (count + elements_each - 1) / elements_each;
        T* out = static_cast<T*>(dense.mutable_data_ptr());
        at::parallel_for(0, blocks, kGrain / 8, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) {
            const uint64_t at = low + static_cast<uint64_t>(b);
            const auto words = Generator::block(key, at, high + (at < low ? 1 : 0));
            for (int64_t e = 0; e < elements_each && b * elements_each + e < count; ++e) {
              uint64_t value = words[static_cast<size_t>(e * words_each)];
              if constexpr (words_each == 2) value |= uint64_t{words[static_cast<size_t>(e * 2 + 1)]} << 32;
              out[b * elements_each + e] = static_cast<T>(value);
            }
          }
        });
        loop.run([width](const auto& p, const auto& s, int64_t n) { copy_run(p[0], s[0], p[1], s[1], n, width); });
        const uint64_t moved = low + static_cast<uint64_t>(blocks);
        word(next, to, 0) = key;
        word(next, to, 1) = moved;
        if (wide_counter) word(next, to, 2) = high + (moved < low ? 1 : 0);
      };
}

Kernel prepare_rng(StepContext& step) {
  step.expect(1, 2);
  const at::Tensor &state = step.input(0), &next = step.output(0), &bits = step.output(1);
  step.expect_dtype(state, at::kUInt64, "input 0 (state)");
  step.require(state.dim() == 1 && (state.size(0) == 2 || state.size(0) == 3), "the state has shape ", state.sizes(),
               "; the op needs [2] or [3]");
  step.expect_same_dtype(next, state, "output 0 (state)");
  step.expect_shape(next, state.sizes(), "output 0 (state)");
  const std::string algorithm = step.text("algorithm");
  const bool three_fry = algorithm == "THREE_FRY";
  step.require(three_fry || algorithm == "PHILOX" || algorithm == "DEFAULT", "attribute `algorithm` is `", algorithm,
               "`; known are DEFAULT, PHILOX and THREE_FRY");
  step.require(!three_fry || state.size(0) == 2, "THREE_FRY has a state of shape [2]");
  Kernel kernel;
  visit_type(IntegerTypes{}, bits.scalar_type(), [&]<typename T>() {
    kernel = three_fry ? generate<ThreeFry, T>(state, next, bits) : generate<Philox, T>(state, next, bits);
  });
  if (!kernel) step.unsupported("the bits must be of an integer type");
  return kernel;
}

constexpr KernelEntry kKernels[] = {{"rng_bit_generator", prepare_rng}};

}  // namespace

std::span<const KernelEntry> random_kernels() { return kKernels; }

}  // namespace nxl::host
