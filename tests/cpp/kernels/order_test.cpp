// SPDX-License-Identifier: Apache-2.0
// sort, top_k, cumulative.
#include <cmath>

#include "program_builder.h"

namespace nxl::host::testing {
namespace {

TEST(Sort, OneOperand) {
  for (at::ScalarType dtype :
       {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kInt, at::kByte, at::kLong, at::kBool}) {
    for (int64_t dim : {0, 1}) {
      for (const bool descending : {false, true}) {
        const at::Tensor x = sample({20, 13}, dtype, 2, true);
        const at::Tensor expected = std::get<0>(x.sort(true, dim, descending));
        const std::string attributes = nxl::detail::concat(
            "{\"dim\":", dim, ",\"stable\":true,\"descending\":", descending ? "true" : "false", "}");
        at::Tensor y = at::empty_like(x), odd = in_odd_layout(x);
        run_step("sort", {x}, {y}, attributes);
        expect_close(y, expected, 0, 0, c10::toString(dtype));
        run_step("sort", {in_odd_layout(x)}, {odd}, attributes);
        expect_close(odd, expected, 0, 0, c10::toString(dtype));
      }
    }
  }
}

TEST(Sort, CarriesTheOthersAlongAndKeepsTies) {
  const at::Tensor keys = at::randint(0, 4, {3, 50}, at::kInt), positions = at::arange(50).expand({3, 50}).contiguous();
  const at::Tensor payload = sample({3, 50}, at::kBFloat16);
  for (const bool descending : {false, true}) {
    const auto [sorted, order] = keys.sort(true, 1, descending);
    at::Tensor k = at::empty_like(keys), p = at::empty_like(positions), q = at::empty_like(payload);
    run_step("sort", {keys, positions, payload}, {k, p, q},
             nxl::detail::concat("{\"dim\":1,\"stable\":true,\"descending\":", descending ? 1 : 0, "}"));
    expect_close(k, sorted);
    expect_close(p, order);
    expect_close(q, payload.gather(1, order));
  }
}

TEST(Sort, UnsignedEmptyAndRefusals) {
  const at::Tensor x = at::tensor({-1, 5, 1, -7}, at::kLong).to(at::kUInt64);
  at::Tensor y = at::empty_like(x);
  run_step("sort", {x}, {y}, R"({"dim":0})");
  expect_close(y, at::tensor({1, 5, -7, -1}, at::kLong).to(at::kUInt64));
  at::Tensor none = at::empty({0, 3});
  run_step("sort", {at::empty({0, 3})}, {none}, R"({"dim":1})");
  expect_refused("sort", {at::ones({3}), at::ones({4})}, {at::empty({3}), at::empty({4})}, R"({"dim":0})",
                 ErrorKind::kInvalid, "input 1 has shape [4]");
  expect_refused("sort", {at::ones({3})}, {}, R"({"dim":0})", ErrorKind::kInvalid, "outputs");
  expect_refused("sort", {at::ones({3}, at::kComplexFloat)}, {at::empty({3}, at::kComplexFloat)}, R"({"dim":0})",
                 ErrorKind::kUnsupported, "order");
}

TEST(TopK, LargestFirstTiesByIndexNanOnTop) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kInt}) {
    const at::Tensor x = sample({4, 100}, dtype);
    const auto [sorted, order] = x.sort(true, 1, true);
    for (int64_t k : {1, 7, 100}) {
      at::Tensor values = at::empty({4, k}, dtype), indices = at::empty({4, k}, at::kLong),
                 narrow = at::empty({4, k}, at::kInt);
      run_step("top_k", {x}, {values, indices}, nxl::detail::concat("{\"k\":", k, "}"));
      expect_close(values, sorted.slice(1, 0, k).contiguous());
      expect_close(indices, order.slice(1, 0, k).contiguous());
      run_step("top_k", {in_odd_layout(x)}, {values, narrow}, nxl::detail::concat("{\"k\":", k, "}"));
      expect_close(narrow, indices.to(at::kInt));
    }
  }
  const at::Tensor x = at::tensor({1.0f, std::nanf(""), 3.0f, std::nanf("")});
  at::Tensor values = at::empty({3}), indices = at::empty({3}, at::kLong);
  run_step("top_k", {x}, {values, indices}, R"({"k":3})");
  expect_close(indices, at::tensor({1, 3, 2}, at::kLong));
  expect_refused("top_k", {x}, {at::empty({5}), at::empty({5}, at::kLong)}, R"({"k":5})", ErrorKind::kInvalid,
                 "`k` is 5");
  expect_refused("top_k", {x}, {at::empty({3}), at::empty({2}, at::kLong)}, R"({"k":3})", ErrorKind::kInvalid, "shape");
}

TEST(Cumulative, EveryKindAndDirection) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kInt, at::kUInt32}) {
    const at::Tensor x = sample({4, 6, 5}, dtype, 1);
    const bool exact = c10::isIntegralType(dtype, false);
    const at::Tensor wide = exact ? x.to(at::kLong) : x.to(at::kDouble);
    for (int64_t dim : {0, 1, 2}) {
      for (const bool reverse : {false, true}) {
        const at::Tensor from = reverse ? wide.flip(dim) : wide;
        const std::pair<const char*, at::Tensor> cases[] = {{"add", from.cumsum(dim)},
                                                            {"multiply", from.cumprod(dim)},
                                                            {"maximum", std::get<0>(from.cummax(dim))},
                                                            {"minimum", std::get<0>(from.cummin(dim))}};
        for (const auto& [kind, result] : cases) {
          const at::Tensor expected = (reverse ? result.flip(dim) : result).to(dtype);
          const std::string attributes = nxl::detail::concat("{\"dim\":", dim, ",\"kind\":\"", kind,
                                                             "\",\"reverse\":", reverse ? "true" : "false", "}");
          const double t = exact ? 0 : dtype == at::kFloat ? 1e-5 : 1.0 / 128;
          at::Tensor y = at::empty_like(x), odd = in_odd_layout(x);
          run_step("cumulative", {x}, {y}, attributes);
          expect_close(y, expected, t, t, attributes);
          run_step("cumulative", {in_odd_layout(x)}, {odd}, attributes);
          expect_close(odd, expected, t, t, attributes);
        }
      }
    }
  }
  const at::Tensor ones = at::ones({1000}, at::kBFloat16);
  at::Tensor y = at::empty_like(ones);
  run_step("cumulative", {ones}, {y}, R"({"dim":0,"kind":"add"})");
  EXPECT_EQ(y[999].item<float>(), 1000) << "the running sum is f32";
  expect_refused("cumulative", {ones}, {y}, R"({"dim":1,"kind":"add"})", ErrorKind::kInvalid, "`dim` is 1");
}

}  // namespace
}  // namespace nxl::host::testing
