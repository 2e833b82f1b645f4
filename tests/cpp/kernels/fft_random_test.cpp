// SPDX-License-Identifier: Apache-2.0
// fft against ATen's transforms; rng_bit_generator against the published test vectors of its generators.
#include "program_builder.h"

namespace nxl::host::testing {
namespace {

TEST(Fft, EveryTypeAndLength) {
  const at::Tensor z = sample({3, 4, 6}, at::kComplexFloat), x = sample({3, 4, 6}, at::kFloat);
  at::Tensor y = at::empty_like(z), odd = in_odd_layout(z), half = at::empty({3, 4, 4}, at::kComplexFloat),
             back = at::empty({3, 4, 6});
  run_step("fft", {z}, {y}, R"({"type":"FFT","length":[6]})");
  expect_close(y, at::fft_fft(z), 1e-4, 1e-4);
  run_step("fft", {in_odd_layout(z)}, {odd}, R"({"type":"FFT","length":[4,6]})");
  expect_close(odd, at::fft_fft2(z), 1e-4, 1e-4);
  run_step("fft", {z}, {y}, R"({"type":"IFFT","length":[6]})");
  expect_close(y, at::fft_ifft(z), 1e-4, 1e-4);
  run_step("fft", {x}, {half}, R"({"type":"RFFT","length":[6]})");
  expect_close(half, at::fft_rfft(x), 1e-4, 1e-4);
  run_step("fft", {half}, {back}, R"({"type":"IRFFT","length":[6]})");
  expect_close(back, x, 1e-4, 1e-4);
  at::Tensor none = at::empty({0, 6}, at::kComplexFloat);
  run_step("fft", {at::empty({0, 6}, at::kComplexFloat)}, {none}, R"({"type":"FFT","length":[6]})");
}

TEST(Fft, RefusesWhatDoesNotFit) {
  const at::Tensor z = at::ones({4, 6}, at::kComplexFloat), y = at::empty_like(z), x = at::ones({4, 6});
  expect_refused("fft", {z}, {y}, R"({"type":"FFT","length":[5]})", ErrorKind::kInvalid, "shape");
  expect_refused("fft", {z}, {y}, R"({"type":"DCT","length":[6]})", ErrorKind::kInvalid, "`DCT`");
  expect_refused("fft", {z}, {y}, R"({"type":"FFT","length":[1,4,6]})", ErrorKind::kInvalid, "length");
  expect_refused("fft", {x}, {at::empty({4, 6})}, R"({"type":"FFT","length":[6]})", ErrorKind::kUnsupported, "c64");
  expect_refused("fft", {x}, {at::empty({4, 6}, at::kComplexFloat)}, R"({"type":"RFFT","length":[6]})",
                 ErrorKind::kInvalid, "shape");
}

at::Tensor state_of(std::vector<int64_t> words) { return at::tensor(words, at::kLong).to(at::kUInt64); }

at::Tensor bits_of(const at::Tensor& state, at::Tensor& next, int64_t count, at::ScalarType dtype,
                   const char* algorithm) {
  at::Tensor bits = at::empty({count}, dtype);
  next = at::empty_like(state);
  run_step("rng_bit_generator", {state}, {next, bits}, nxl::detail::concat("{\"algorithm\":\"", algorithm, "\"}"));
  return bits;
}

TEST(Random, PublishedVectors) {
  at::Tensor next;
  const auto as_words = [](const at::Tensor& t) { return t.to(at::kLong); };
  expect_close(as_words(bits_of(state_of({0, 0, 0}), next, 4, at::kUInt32, "PHILOX")),
               at::tensor({0x6627e8d5L, 0xe169c58dL, 0xbc57ac4cL, 0x9b00dbd8L}, at::kLong));
  expect_close(as_words(bits_of(state_of({-1, -1, -1}), next, 4, at::kUInt32, "PHILOX")),
               at::tensor({0x408f276dL, 0x41c83b0eL, 0xa20bc7c6L, 0x6d5451fdL}, at::kLong));
  expect_close(as_words(bits_of(state_of({0, 0}), next, 2, at::kUInt32, "THREE_FRY")),
               at::tensor({0x6b200159L, 0x99ba4efeL}, at::kLong));
  expect_close(as_words(bits_of(state_of({-1, -1}), next, 2, at::kUInt32, "THREE_FRY")),
               at::tensor({0x1cb996fcL, 0xbb002be7L}, at::kLong));
}

TEST(Random, TheStateMovesOnByTheBlocksUsed) {
  for (const char* algorithm : {"DEFAULT", "PHILOX", "THREE_FRY"}) {
    at::Tensor middle, end, once;
    const at::Tensor start = state_of({42, 7});
    const at::Tensor first = bits_of(start, middle, 8, at::kUInt32, algorithm);
    const at::Tensor second = bits_of(middle, end, 8, at::kUInt32, algorithm);
    const at::Tensor both = bits_of(start, once, 16, at::kUInt32, algorithm);
    expect_close(both.to(at::kLong), at::cat({first.to(at::kLong), second.to(at::kLong)}));
    expect_close(once, end);
    EXPECT_FALSE(at::equal(first.to(at::kLong), second.to(at::kLong)));
  }
  at::Tensor next;
  bits_of(state_of({1, -1, 5}), next, 4, at::kUInt32, "PHILOX");
  expect_close(next, state_of({1, 0, 6}), 0, 0, "the counter carries");
}

TEST(Random, WidthsLayoutsAndRefusals) {
  at::Tensor next;
  const at::Tensor words = bits_of(state_of({3, 4}), next, 8, at::kUInt32, "PHILOX").to(at::kLong);
  const at::Tensor wide = bits_of(state_of({3, 4}), next, 4, at::kUInt64, "PHILOX").contiguous().view(at::kLong);
  const at::Tensor even = words.slice(0, 0, 8, 2), odd = words.slice(0, 1, 8, 2);
  expect_close(wide, even + odd * (int64_t{1} << 32));
  expect_close(bits_of(state_of({3, 4}), next, 8, at::kByte, "PHILOX").to(at::kLong), words & 255);
  at::Tensor view = in_odd_layout(at::empty({2, 4}, at::kInt));
  run_step("rng_bit_generator", {state_of({3, 4})}, {next, view}, R"({"algorithm":"PHILOX"})");
  expect_close(view.contiguous().view(-1), words.to(at::kInt));
  expect_refused("rng_bit_generator", {state_of({1})}, {next, view}, R"({"algorithm":"PHILOX"})", ErrorKind::kInvalid,
                 "[2] or [3]");
  expect_refused("rng_bit_generator", {state_of({1, 2})}, {at::empty_like(state_of({1, 2})), at::empty({3})},
                 R"({"algorithm":"PHILOX"})", ErrorKind::kUnsupported, "integer");
  expect_refused("rng_bit_generator", {state_of({1, 2})}, {at::empty_like(state_of({1, 2})), view},
                 R"({"algorithm":"DICE"})", ErrorKind::kInvalid, "`DICE`");
}

}  // namespace
}  // namespace nxl::host::testing
