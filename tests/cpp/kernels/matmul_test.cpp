// SPDX-License-Identifier: Apache-2.0
// dot_general against a product in f64, over types, layouts, batches and row counts; the skinny kernels one by one.
#include <limits>

#include "host/kernels/skinny_matmul.h"
#include "program_builder.h"

namespace nxl::host::testing {
namespace {

const char* const kPlain = R"({"lhs_batching":[],"rhs_batching":[],"lhs_contracting":[1],"rhs_contracting":[0]})";
const char* const kWeight = R"({"lhs_batching":[],"rhs_batching":[],"lhs_contracting":[1],"rhs_contracting":[1]})";
const char* const kBatched = R"({"lhs_batching":[0],"rhs_batching":[0],"lhs_contracting":[2],"rhs_contracting":[1]})";

at::Tensor exact(const at::Tensor& a, const at::Tensor& b) { return at::matmul(a.to(at::kDouble), b.to(at::kDouble)); }

double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 1.0 / 128;
    case at::kHalf:
      return 1.0 / 1024;
    case at::kDouble:
      return 1e-11;
    default:
      return 1e-4;
  }
}

TEST(DotGeneral, MatrixProductsOfAllFloatTypes) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (int64_t m : {1, 2, 3, 4, 5, 33}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 7}, {3, 40}, {64, 33}, {130, 257}}) {
        SCOPED_TRACE(nxl::detail::concat(c10::toString(dtype), " m ", m, " n ", n, " k ", k));
        const at::Tensor a = sample({m, k}, dtype, 1), b = sample({k, n}, dtype, 1);
        const at::Tensor expected = exact(a, b).to(dtype);
        const double t = tolerance(dtype), absolute = t * std::sqrt(static_cast<double>(k));
        at::Tensor y = at::empty({m, n}, dtype);
        run_step("dot_general", {a, b}, {y}, kPlain, 2);
        expect_close(y, expected, t, absolute, "[k,n]");
        run_step("dot_general", {a, b.t().contiguous()}, {y}, kWeight, 2);
        expect_close(y, expected, t, absolute, "[n,k]");
        run_step("dot_general", {in_odd_layout(a), in_odd_layout(b)}, {y}, kPlain);
        expect_close(y, expected, t, absolute, "odd operands");
        at::Tensor odd = in_odd_layout(y);
        run_step("dot_general", {a, b}, {odd}, kPlain);
        expect_close(odd, expected, t, absolute, "odd output");
      }
    }
  }
}

TEST(DotGeneral, WideResultsOfNarrowOperands) {
  for (int64_t m : {1, 4, 9}) {
    const at::Tensor a = sample({m, 200}, at::kBFloat16, 1), w = sample({50, 200}, at::kBFloat16, 1);
    at::Tensor y = at::empty({m, 50});
    run_step("dot_general", {a, w}, {y}, kWeight);
    expect_close(y, exact(a, w.t()).to(at::kFloat), 1e-4, 1e-3);
  }
}

TEST(DotGeneral, BatchesOfEveryShape) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (int64_t m : {1, 4, 20}) {
      const at::Tensor a = sample({6, m, 24}, dtype, 1), b = sample({6, 24, 10}, dtype, 1);
      at::Tensor y = at::empty({6, m, 10}, dtype);
      run_step("dot_general", {a, b}, {y}, kBatched, 2);
      expect_close(y, exact(a, b).to(dtype), tolerance(dtype), 0.06);
      at::Tensor shared = at::empty({6, m, 10}, dtype);
      run_step("dot_general", {a, b.slice(0, 0, 1).expand({6, 24, 10})}, {shared}, kBatched);
      expect_close(shared, exact(a, b.slice(0, 0, 1)).to(dtype), tolerance(dtype), 0.06, "one rhs for all");
    }
  }
}

// Grouped-query attention: the heads of a group read one key head, through a stride of 0.
TEST(DotGeneral, GroupedHeadsWithoutCopies) {
  const char* const attributes =
      R"({"lhs_batching":[0,1],"rhs_batching":[0,1],"lhs_contracting":[3],"rhs_contracting":[3]})";
  for (int64_t rows : {1, 7}) {
    const at::Tensor q = sample({2, 6, rows, 16}, at::kFloat, 1), cache = sample({2, 2, 40, 16}, at::kFloat, 1);
    const at::Tensor keys = cache.unsqueeze(2).expand({2, 2, 3, 40, 16});
    const at::Tensor q5 = q.view({2, 2, 3, rows, 16});
    at::Tensor y = at::empty({2, 2, 3, rows, 40});
    run_step("dot_general", {q5, keys}, {y},
             R"({"lhs_batching":[0,1,2],"rhs_batching":[0,1,2],"lhs_contracting":[4],"rhs_contracting":[4]})");
    expect_close(y, exact(q5, keys.transpose(-1, -2)).to(at::kFloat), 1e-4, 1e-4);
    at::Tensor plain = at::empty({2, 2, rows, 40});
    run_step("dot_general", {q.slice(1, 0, 2), cache}, {plain}, attributes);
    expect_close(plain, exact(q.slice(1, 0, 2), cache.transpose(-1, -2)).to(at::kFloat), 1e-4, 1e-4);
  }
}

TEST(DotGeneral, SeveralFreeAndContractingDimensions) {
  const at::Tensor a = sample({3, 4, 5, 6}, at::kFloat, 1), b = sample({6, 7, 4, 2}, at::kFloat, 1);
  const at::Tensor expected = at::einsum("iajb,bkal->ijkl", {a.to(at::kDouble), b.to(at::kDouble)}).to(at::kFloat);
  const char* const attributes =
      R"({"lhs_batching":[],"rhs_batching":[],"lhs_contracting":[1,3],"rhs_contracting":[2,0]})";
  at::Tensor y = at::empty({3, 5, 7, 2});
  run_step("dot_general", {a, b}, {y}, attributes);
  expect_close(y, expected, 1e-4, 1e-4);
  at::Tensor odd = in_odd_layout(y);
  run_step("dot_general", {in_odd_layout(a), in_odd_layout(b)}, {odd}, attributes);
  expect_close(odd, expected, 1e-4, 1e-4);
}

TEST(DotGeneral, IntegersBoolsAndComplex) {
  for (at::ScalarType dtype :
       {at::kChar, at::kByte, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong, at::kUInt64}) {
    const at::Tensor a = sample({5, 9}, dtype), b = sample({9, 4}, dtype);
    at::Tensor y = at::empty({5, 4}, dtype);
    run_step("dot_general", {a, b}, {y}, kPlain);
    expect_close(y, at::matmul(a.to(at::kLong), b.to(at::kLong)).to(dtype), 0, 0, c10::toString(dtype));
  }
  const at::Tensor narrow = sample({5, 300}, at::kChar), other = sample({300, 4}, at::kChar);
  at::Tensor wide = at::empty({5, 4}, at::kInt);
  run_step("dot_general", {narrow, other}, {wide}, kPlain);
  expect_close(wide, at::matmul(narrow.to(at::kInt), other.to(at::kInt)));
  const at::Tensor p = sample({5, 9}, at::kBool), q = sample({9, 4}, at::kBool);
  at::Tensor any = at::empty({5, 4}, at::kBool);
  run_step("dot_general", {p, q}, {any}, kPlain);
  expect_close(any, at::matmul(p.to(at::kLong), q.to(at::kLong)) != 0);
  const at::Tensor z = sample({5, 9}, at::kComplexFloat), w = sample({9, 4}, at::kComplexFloat);
  at::Tensor v = at::empty({5, 4}, at::kComplexFloat);
  run_step("dot_general", {z, w}, {v}, kPlain);
  expect_close(v, at::matmul(z, w), 1e-4, 1e-4);
}

TEST(DotGeneral, EmptyProducts) {
  at::Tensor y = at::ones({3, 4});
  run_step("dot_general", {at::empty({3, 0}), at::empty({0, 4})}, {y}, kPlain);
  expect_close(y, at::zeros({3, 4}));
  at::Tensor none = at::empty({0, 4});
  run_step("dot_general", {at::empty({0, 5}), at::empty({5, 4})}, {none}, kPlain);
  at::Tensor scalar = at::empty({});
  run_step("dot_general", {at::ones({6}), at::full({6}, 2.0)}, {scalar},
           R"({"lhs_batching":[],"rhs_batching":[],"lhs_contracting":[0],"rhs_contracting":[0]})");
  EXPECT_EQ(scalar.item<float>(), 12);
}

TEST(DotGeneral, RefusesWhatDoesNotFit) {
  const at::Tensor a = at::ones({3, 4}), b = at::ones({5, 6});
  expect_refused("dot_general", {a, b}, {at::empty({3, 6})}, kPlain, ErrorKind::kInvalid, "contracting pair 0");
  expect_refused("dot_general", {a, at::ones({4, 6})}, {at::empty({3, 7})}, kPlain, ErrorKind::kInvalid, "shape");
  expect_refused("dot_general", {a, b}, {at::empty({3, 6})}, R"({"lhs_contracting":[2],"rhs_contracting":[0]})",
                 ErrorKind::kInvalid, "names dimension 2");
  expect_refused("dot_general", {a, b}, {at::empty({3, 6})}, R"({"lhs_contracting":[1,1],"rhs_contracting":[0,1]})",
                 ErrorKind::kInvalid, "twice");
  expect_refused("dot_general", {a, at::ones({4, 6}, at::kInt)}, {at::empty({3, 6})}, kPlain, ErrorKind::kUnsupported,
                 "Int");
}

std::vector<const SkinnyKernels*> kernels_of_this_machine() {
  std::vector<const SkinnyKernels*> all{&skinny_kernels_portable()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    all.push_back(&skinny_kernels_avx2());
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    all.push_back(&skinny_kernels_avx512());
  }
#endif
  return all;
}

template <typename T>
void check_loops(const SkinnyKernels& kernels, WeightType type, at::ScalarType dtype) {
  for (int rows = 1; rows <= kSkinnyRows; ++rows) {
    for (int64_t n : {1, 3, 4, 15, 16, 70, 129, 200}) {
      for (int64_t k : {1, 15, 16, 17, 100}) {
        const at::Tensor x = sample({rows, k}, at::kFloat, 1), w = sample({n, k}, dtype, 1);
        const at::Tensor columns = w.t().contiguous();
        const at::Tensor expected = exact(x, w.t()).to(at::kFloat);
        at::Tensor y = at::full({rows, n}, -1.0);
        kernels.dot[static_cast<size_t>(type)](rows, x.const_data_ptr<float>(), k, w.const_data_ptr(), k, k, n,
                                               y.mutable_data_ptr<float>(), n);
        expect_close(y, expected, 1e-5, 1e-4, kernels.name);
        y.fill_(-1);
        kernels.axpy[static_cast<size_t>(type)](rows, x.const_data_ptr<float>(), k, columns.const_data_ptr(), n, k, n,
                                                y.mutable_data_ptr<float>(), n);
        expect_close(y, expected, 1e-5, 1e-4, kernels.name);
      }
    }
  }
}

TEST(SkinnyKernels, AgreeWithTheProductInF64) {
  for (const SkinnyKernels* kernels : kernels_of_this_machine()) {
    SCOPED_TRACE(kernels->name);
    check_loops<c10::BFloat16>(*kernels, WeightType::kBFloat16, at::kBFloat16);
    check_loops<c10::Half>(*kernels, WeightType::kFloat16, at::kHalf);
    check_loops<float>(*kernels, WeightType::kFloat32, at::kFloat);
  }
}

TEST(SkinnyKernels, KeepNanInfinityAndDenormals) {
  const float inf = std::numeric_limits<float>::infinity(), tiny = 1e-40f;
  for (const SkinnyKernels* kernels : kernels_of_this_machine()) {
    SCOPED_TRACE(kernels->name);
    for (int64_t place : {0, 20}) {  // in the vector part, in the tail
      for (float special : {inf, -inf, std::nanf(""), tiny}) {
        at::Tensor w = at::zeros({1, 21}, at::kBFloat16);
        w[0][place] = special;
        const at::Tensor x = at::ones({1, 21});
        float y = 0;
        kernels->dot[0](1, x.const_data_ptr<float>(), 21, w.const_data_ptr(), 21, 21, 1, &y, 1);
        const float expected = w[0][place].item<float>();
        EXPECT_TRUE(y == expected || (y != y && expected != expected)) << special << " gave " << y;
        const at::Tensor column = w.t().contiguous();
        kernels->axpy[0](1, x.const_data_ptr<float>(), 21, column.const_data_ptr(), 1, 21, 1, &y, 1);
        EXPECT_TRUE(y == expected || (y != y && expected != expected)) << special << " gave " << y;
      }
    }
  }
}

TEST(SkinnyKernels, WithinAStepOfAtensProduct) {
  const at::Tensor x = sample({1, 576}, at::kBFloat16, 1), w = sample({1536, 576}, at::kBFloat16, 0.1);
  at::Tensor y = at::empty({1, 1536}, at::kBFloat16);
  run_step("dot_general", {x, w}, {y}, kWeight, 2);
  expect_close(y, at::mm(x, w.t()), 1.0 / 128, 1e-3);
}

}  // namespace
}  // namespace nxl::host::testing
