// SPDX-License-Identifier: Apache-2.0
// reduce_window and convolution against StableHLO's definition, written out over padded and dilated tensors in f64.
#include <ATen/autocast_mode.h>

#include <numeric>

#include "program_builder.h"

namespace nxl::host::testing {
namespace {

using Dims = std::vector<int64_t>;

std::string ints(const char* name, const Dims& dims) {
  return nxl::detail::concat("\"", name, "\":[", c10::Join(",", dims), "],");
}

std::string pairs(const Dims& low, const Dims& high) {
  std::string text = "\"padding\":[";
  for (size_t d = 0; d < low.size(); ++d) {
    text += nxl::detail::concat(d == 0 ? "" : ",", "[", low[d], ",", high[d], "]");
  }
  return text + "],";
}

// x with holes and padding of `value` in dimension `dim`; negative padding cuts.
at::Tensor widened(const at::Tensor& x, int64_t dim, int64_t dilation, int64_t low, int64_t high, double value) {
  Dims shape = x.sizes().vec();
  const int64_t n = x.size(dim), dilated = n == 0 ? 0 : (n - 1) * dilation + 1;
  const int64_t most = std::max<int64_t>(low, 0), least = std::max<int64_t>(high, 0);
  shape[static_cast<size_t>(dim)] = most + dilated + least;
  at::Tensor wide = at::full(shape, value, x.options());
  if (n > 0) wide.slice(dim, most, most + dilated, dilation).copy_(x);
  return wide.slice(dim, std::max<int64_t>(-low, 0), wide.size(dim) - std::max<int64_t>(-high, 0));
}

struct Window {
  Dims size, stride, base, dilation, low, high;
};

std::string window_attributes(const Window& w, const std::string& kind) {
  return "{" + ints("window_dimensions", w.size) + ints("window_strides", w.stride) + ints("base_dilations", w.base) +
         ints("window_dilations", w.dilation) + pairs(w.low, w.high) + "\"kind\":\"" + kind + "\"}";
}

at::Tensor window_oracle(at::Tensor x, const Window& w, const std::string& kind, double identity) {
  const int64_t rank = x.dim();
  for (int64_t d = 0; d < rank; ++d) {
    const auto u = static_cast<size_t>(d);
    x = widened(x, d, w.base[u], w.low[u], w.high[u], identity);
  }
  for (int64_t d = 0; d < rank; ++d) {
    const auto u = static_cast<size_t>(d);
    const int64_t span = (w.size[u] - 1) * w.dilation[u] + 1;
    const int64_t count = x.size(d) < span ? 0 : (x.size(d) - span) / w.stride[u] + 1;
    at::Tensor total;
    for (int64_t tap = 0; tap < w.size[u]; ++tap) {
      const int64_t first = tap * w.dilation[u];
      const at::Tensor part =
          count == 0 ? x.slice(d, 0, 0) : x.slice(d, first, first + (count - 1) * w.stride[u] + 1, w.stride[u]);
      if (!total.defined())
        total = part;
      else if (kind == "add")
        total = total + part;
      else if (kind == "maximum")
        total = at::maximum(total, part);
      else if (kind == "minimum")
        total = at::minimum(total, part);
      else
        total = total * part;
    }
    x = total;
  }
  return x.contiguous();
}

TEST(ReduceWindow, PaddingStridesAndDilations) {
  const double inf = std::numeric_limits<double>::infinity();
  const Window windows[] = {
      {{1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1}},
      {{2, 2, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}},
      {{1, 3, 2}, {1, 1, 3}, {1, 1, 1}, {1, 2, 3}, {0, 0, 2}, {0, 3, 0}},
      {{2, 3, 3}, {1, 1, 1}, {2, 3, 2}, {1, 2, 3}, {1, 2, 0}, {0, 1, 4}},
      {{1, 2, 2}, {1, 1, 1}, {1, 2, 1}, {1, 1, 1}, {0, -1, -1}, {0, 0, -2}},
      {{1, 9, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}},
  };
  for (const Window& w : windows) {
    for (const auto& [kind, identity] :
         {std::pair<std::string, double>{"add", 0}, {"maximum", -inf}, {"minimum", inf}, {"multiply", 1}}) {
      for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const at::Tensor x = sample({3, 8, 9}, dtype, 1);
        const at::Tensor expected = window_oracle(x.to(at::kDouble), w, kind, identity).to(dtype);
        at::Tensor y = at::empty_like(expected), odd = in_odd_layout(at::zeros_like(expected));
        const double t = dtype == at::kFloat ? 1e-4 : 1.0 / 128;
        run_step("reduce_window", {x, at::full({}, identity, dtype)}, {y}, window_attributes(w, kind), 2);
        expect_close(y, expected, t, t, kind);
        if (expected.numel() == 0) continue;
        run_step("reduce_window", {in_odd_layout(x), at::full({}, identity, dtype)}, {odd}, window_attributes(w, kind));
        expect_close(odd, expected, t, t, kind);
      }
    }
  }
}

TEST(ReduceWindow, IntegersScalarsAndRefusals) {
  const at::Tensor x = sample({10}, at::kInt);
  at::Tensor y = at::empty({8}, at::kInt);
  run_step("reduce_window", {x, at::zeros({}, at::kInt)}, {y}, R"({"window_dimensions":[3],"kind":"add"})");
  expect_close(y, (x.slice(0, 0, 8) + x.slice(0, 1, 9) + x.slice(0, 2, 10)));
  at::Tensor scalar = at::empty({});
  run_step("reduce_window", {at::full({}, 4.0), at::full({}, 3.0)}, {scalar},
           R"({"window_dimensions":[],"kind":"add"})");
  EXPECT_EQ(scalar.item<float>(), 7);
  expect_refused("reduce_window", {x, at::zeros({}, at::kInt)}, {y}, R"({"window_dimensions":[4],"kind":"add"})",
                 ErrorKind::kInvalid, "shape");
  expect_refused("reduce_window", {x, at::zeros({}, at::kInt)}, {y},
                 R"({"window_dimensions":[3],"window_strides":[0],"kind":"add"})", ErrorKind::kInvalid, "stride");
  expect_refused("reduce_window", {x, at::zeros({}, at::kInt)}, {y},
                 R"({"window_dimensions":[3],"padding":[[9223372036854775807,1]],"kind":"add"})", ErrorKind::kInvalid,
                 "padding");
}

struct Convolution {
  Dims input, kernel;  // batch, feature, spatial...; output feature, input feature, spatial...
  Dims stride, low, high, base, dilation;
  std::vector<bool> reversal;
  int64_t feature_groups = 1, batch_groups = 1;
};

at::Tensor convolution_oracle(at::Tensor x, at::Tensor w, const Convolution& c) {
  x = x.to(at::kDouble);
  w = w.to(at::kDouble);
  const auto rank = static_cast<int64_t>(c.stride.size());
  for (int64_t d = 0; d < rank; ++d) {
    const auto u = static_cast<size_t>(d);
    x = widened(x, d + 2, c.base[u], c.low[u], c.high[u], 0);
    if (c.reversal[u]) w = w.flip(d + 2);
  }
  const int64_t groups = c.feature_groups * c.batch_groups;
  const int64_t batch = x.size(0) / c.batch_groups, out_each = w.size(0) / groups;
  std::vector<at::Tensor> parts;
  for (int64_t g = 0; g < groups; ++g) {
    const at::Tensor xg =
        c.batch_groups > 1 ? x.slice(0, g * batch, (g + 1) * batch) : x.slice(1, g * w.size(1), (g + 1) * w.size(1));
    const at::Tensor wg = w.slice(0, g * out_each, (g + 1) * out_each);
    // Tap by tap: a product of features for every position of the kernel.
    Dims taps(static_cast<size_t>(rank), 0);
    at::Tensor total;
    for (bool more = true; more;) {
      at::Tensor view = xg, weight = wg;
      for (int64_t d = 0; d < rank; ++d) {
        const auto u = static_cast<size_t>(d);
        const int64_t span = (w.size(d + 2) - 1) * c.dilation[u] + 1;
        const int64_t count = (x.size(d + 2) - span) / c.stride[u] + 1, first = taps[u] * c.dilation[u];
        view = view.slice(d + 2, first, first + (count - 1) * c.stride[u] + 1, c.stride[u]);
        weight = weight.select(2, taps[u]);
      }
      const at::Tensor part = at::tensordot(view, weight, {1}, {1}).movedim(-1, 1);
      total = total.defined() ? total + part : part;
      more = false;
      for (int64_t d = rank; d-- > 0;) {
        const auto u = static_cast<size_t>(d);
        if (++taps[u] < w.size(d + 2)) {
          more = true;
          break;
        }
        taps[u] = 0;
      }
    }
    parts.push_back(total);
  }
  return at::cat(parts, 1);
}

std::string convolution_attributes(const Convolution& c, bool channels_last) {
  const auto rank = static_cast<int64_t>(c.stride.size());
  Dims spatial(static_cast<size_t>(rank)), kernel_spatial(static_cast<size_t>(rank));
  std::iota(spatial.begin(), spatial.end(), channels_last ? 1 : 2);
  std::iota(kernel_spatial.begin(), kernel_spatial.end(), channels_last ? 0 : 2);
  std::string reversal = "\"window_reversal\":[";
  for (size_t d = 0; d < c.reversal.size(); ++d)
    reversal += std::string(d == 0 ? "" : ",") + (c.reversal[d] ? "true" : "false");
  const int64_t feature = channels_last ? rank + 1 : 1;
  return "{" + ints("window_strides", c.stride) + ints("lhs_dilation", c.base) + ints("rhs_dilation", c.dilation) +
         pairs(c.low, c.high) + reversal + "]," + ints("input_spatial", spatial) + ints("output_spatial", spatial) +
         ints("kernel_spatial", kernel_spatial) +
         nxl::detail::concat("\"input_batch\":0,\"output_batch\":0,\"input_feature\":", feature,
                             ",\"output_feature\":", feature, ",\"kernel_input_feature\":", channels_last ? rank : 1,
                             ",\"kernel_output_feature\":", channels_last ? rank + 1 : 0,
                             ",\"feature_group_count\":", c.feature_groups, ",\"batch_group_count\":", c.batch_groups,
                             "}");
}

const std::vector<Convolution>& convolutions() {
  static const std::vector<Convolution> all = {
      {{2, 3, 8, 9}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {false, false}},
      {{2, 4, 8, 9}, {6, 2, 3, 2}, {2, 1}, {0, 0}, {0, 0}, {1, 1}, {1, 1}, {false, false}, 2},
      {{1, 4, 10}, {4, 1, 4}, {1}, {3}, {0}, {1}, {1}, {false}, 4},
      {{2, 3, 8, 9}, {4, 3, 3, 3}, {1, 2}, {2, 0}, {1, 3}, {1, 1}, {2, 1}, {false, false}},
      {{2, 3, 5, 6}, {4, 3, 3, 3}, {1, 1}, {2, 2}, {2, 3}, {2, 3}, {1, 1}, {true, true}},
      {{2, 3, 8, 9}, {4, 3, 2, 2}, {1, 1}, {-1, 0}, {-2, -3}, {1, 2}, {1, 1}, {false, false}},
      {{4, 3, 6, 5}, {4, 3, 2, 2}, {1, 1}, {0, 0}, {0, 0}, {1, 1}, {1, 1}, {false, true}, 1, 2},
      {{1, 2, 4, 5, 6}, {3, 2, 2, 2, 2}, {1, 1, 1}, {0, 1, 0}, {0, 1, 0}, {1, 1, 1}, {1, 1, 1}, {false, false, false}},
      {{3, 4}, {5, 4}, {}, {}, {}, {}, {}, {}},
  };
  return all;
}

TEST(Convolution, EveryForm) {
  for (size_t number = 0; number < convolutions().size(); ++number) {
    const Convolution& c = convolutions()[number];
    for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(nxl::detail::concat("convolution ", number, " ", c10::toString(dtype)));
      const at::Tensor x = sample(c.input, dtype, 1), w = sample(c.kernel, dtype, 1);
      const at::Tensor expected = convolution_oracle(x, w, c).to(dtype).contiguous();
      const double t = dtype == at::kBFloat16 ? 1.0 / 64 : dtype == at::kHalf ? 1.0 / 512 : 1e-4;
      at::Tensor y = at::empty_like(expected);
      run_step("convolution", {x, w}, {y}, convolution_attributes(c, false));
      expect_close(y, expected, t, 4 * t);
      at::Tensor odd = in_odd_layout(y);
      run_step("convolution", {in_odd_layout(x), in_odd_layout(w)}, {odd}, convolution_attributes(c, false));
      expect_close(odd, expected, t, 4 * t);
      const at::Tensor last = x.movedim(1, -1).contiguous(), kernel = w.movedim(0, -1).movedim(0, -2).contiguous();
      at::Tensor y_last = at::empty_like(expected.movedim(1, -1).contiguous());
      run_step("convolution", {last, kernel}, {y_last}, convolution_attributes(c, true));
      expect_close(y_last.movedim(-1, 1), expected, t, 4 * t, "channels last");
    }
  }
}

TEST(Convolution, IntegersAndComplex) {
  const Convolution& c = convolutions()[0];
  const at::Tensor x = sample(c.input, at::kChar), w = sample(c.kernel, at::kChar);
  at::Tensor y = at::empty({2, 4, 8, 9}, at::kInt);
  run_step("convolution", {x, w}, {y}, convolution_attributes(c, false));
  expect_close(y, convolution_oracle(x, w, c).to(at::kInt));
  const at::Tensor z = sample(c.input, at::kComplexFloat, 1), v = sample(c.kernel, at::kComplexFloat, 1);
  at::Tensor u = at::empty({2, 4, 8, 9}, at::kComplexFloat);
  run_step("convolution", {z, v}, {u}, convolution_attributes(c, false));
  const at::Tensor real =
      convolution_oracle(at::real(z), at::real(v), c) - convolution_oracle(at::imag(z), at::imag(v), c);
  const at::Tensor imaginary =
      convolution_oracle(at::real(z), at::imag(v), c) + convolution_oracle(at::imag(z), at::real(v), c);
  expect_close(u, at::complex(real, imaginary).to(at::kComplexFloat), 1e-4, 1e-3);
}

// ATen would convolve in bf16: the caller's autocast is not the program's.
TEST(Convolution, DoesNotSeeTheCallersAutocast) {
  const Convolution& c = convolutions()[0];
  const at::Tensor x = sample(c.input, at::kFloat, 1), w = sample(c.kernel, at::kFloat, 1);
  const at::Tensor expected = convolution_oracle(x, w, c).to(at::kFloat).contiguous();
  at::Tensor y = at::empty_like(expected);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  run_step("convolution", {x, w}, {y}, convolution_attributes(c, false));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  expect_close(y, expected, 1e-4, 4e-4);
}

TEST(Convolution, RefusesWhatDoesNotFit) {
  Convolution c = convolutions()[0];
  const at::Tensor x = at::ones(c.input), w = at::ones(c.kernel), y = at::empty({2, 4, 8, 9});
  expect_refused("convolution", {x, w}, {at::empty({2, 4, 8, 8})}, convolution_attributes(c, false),
                 ErrorKind::kInvalid, "shape");
  expect_refused("convolution", {x, at::ones({4, 2, 3, 3})}, {y}, convolution_attributes(c, false), ErrorKind::kInvalid,
                 "groups");
  c.feature_groups = 3;
  expect_refused("convolution", {x, w}, {y}, convolution_attributes(c, false), ErrorKind::kInvalid, "groups");
  c.feature_groups = 1;
  c.batch_groups = 0;
  expect_refused("convolution", {x, w}, {y}, convolution_attributes(c, false), ErrorKind::kInvalid, "group counts");
}

}  // namespace
}  // namespace nxl::host::testing
