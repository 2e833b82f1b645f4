// SPDX-License-Identifier: Apache-2.0
// The loops of row_kernels.h over a vector type. Each instruction set's file includes its `Vector` and this once,
// inside its own anonymous namespace, so nothing here is shared between files. Beyond skinny_loops.h, Vector offers:
//   add, sub, mul, div, negate, abs, sqrt, exp, tanh, erf; maximum, minimum and largest, which pass NaN on;
//   keep(Reg, const uint8_t* flags, Reg otherwise); round_bfloat16, round_float16;
//   store_exact(T*, Reg) and narrow_exact(T*, float) for values that T holds.

template <Rounding kRounding>
Vector::Reg rounded(Vector::Reg value) {
  if constexpr (kRounding == Rounding::kBFloat16) return Vector::round_bfloat16(value);
  if constexpr (kRounding == Rounding::kFloat16) return Vector::round_float16(value);
  return value;
}

// scores[i] = exp(scores[i] - top), rounded; returns the sum before rounding.
template <Rounding kRounding>
float exponentials(float* scores, int64_t padded, float top) {
  const Vector::Reg peak = Vector::broadcast(top);
  Vector::Reg total = Vector::zero();
  for (int64_t i = 0; i < padded; i += Vector::kWidth) {
    const Vector::Reg weight = Vector::exp(Vector::sub(Vector::load(scores + i), peak));
    total = Vector::add(total, weight);
    Vector::store(scores + i, rounded<kRounding>(weight));
  }
  return Vector::sum(total);
}

float softmax(float* scores, int64_t n, float scale, const uint8_t* keep, const float* bias, Rounding rounding) {
  const float lowest = -__builtin_inff();
  const Vector::Reg factor = Vector::broadcast(scale), out = Vector::broadcast(lowest);
  const int64_t padded = (n + kRowPad - 1) / kRowPad * kRowPad;
  for (int64_t i = 0; i < padded; i += Vector::kWidth) {
    Vector::Reg score = Vector::mul(Vector::load(scores + i), factor);
    if (keep != nullptr) score = Vector::keep(score, keep + i, out);
    if (bias != nullptr) score = Vector::add(score, Vector::load(bias + i));
    Vector::store(scores + i, score);
  }
  for (int64_t i = n; i < padded; ++i) scores[i] = lowest;
  Vector::Reg best = Vector::load(scores);
  for (int64_t i = Vector::kWidth; i < padded; i += Vector::kWidth) {
    best = Vector::maximum(best, Vector::load(scores + i));
  }
  float top = Vector::largest(best);
  const bool masked = keep != nullptr || bias != nullptr;
  if (masked && top == lowest) top = 0;
  float total = 0;
  switch (rounding) {
    case Rounding::kBFloat16:
      total = exponentials<Rounding::kBFloat16>(scores, padded, top);
      break;
    case Rounding::kFloat16:
      total = exponentials<Rounding::kFloat16>(scores, padded, top);
      break;
    case Rounding::kNone:
      total = exponentials<Rounding::kNone>(scores, padded, top);
      break;
  }
  return masked && total == 0 ? 1 : total;
}

template <RowUnary kOp>
Vector::Reg apply(Vector::Reg x) {
  if constexpr (kOp == RowUnary::kNegate) return Vector::negate(x);
  if constexpr (kOp == RowUnary::kAbs) return Vector::abs(x);
  if constexpr (kOp == RowUnary::kExponential) return Vector::exp(x);
  if constexpr (kOp == RowUnary::kLogistic) {
    const Vector::Reg one = Vector::broadcast(1);
    return Vector::div(one, Vector::add(one, Vector::exp(Vector::negate(x))));
  }
  if constexpr (kOp == RowUnary::kTanh) return Vector::tanh(x);
  if constexpr (kOp == RowUnary::kErf) return Vector::erf(x);
  if constexpr (kOp == RowUnary::kSqrt) return Vector::sqrt(x);
  if constexpr (kOp == RowUnary::kRsqrt) return Vector::div(Vector::broadcast(1), Vector::sqrt(x));
  return x;
}

template <RowBinary kOp>
Vector::Reg apply(Vector::Reg a, Vector::Reg b) {
  if constexpr (kOp == RowBinary::kAdd) return Vector::add(a, b);
  if constexpr (kOp == RowBinary::kSubtract) return Vector::sub(a, b);
  if constexpr (kOp == RowBinary::kMultiply) return Vector::mul(a, b);
  if constexpr (kOp == RowBinary::kDivide) return Vector::div(a, b);
  if constexpr (kOp == RowBinary::kMaximum) return Vector::maximum(a, b);
  return Vector::minimum(a, b);
}

template <RowUnary kOp, Rounding kRounding>
void unary(float* y, const float* a, int64_t n) {
  for (int64_t i = 0; i < n; i += Vector::kWidth) {
    Vector::store(y + i, rounded<kRounding>(apply<kOp>(Vector::load(a + i))));
  }
}

template <RowBinary kOp, RowForm kForm, Rounding kRounding>
void binary(float* y, const float* a, const float* b, int64_t n) {
  const Vector::Reg left = Vector::broadcast(*a), right = Vector::broadcast(*b);
  for (int64_t i = 0; i < n; i += Vector::kWidth) {
    const Vector::Reg x = kForm == RowForm::kLeftNumber ? left : Vector::load(a + i);
    const Vector::Reg z = kForm == RowForm::kRightNumber ? right : Vector::load(b + i);
    Vector::store(y + i, rounded<kRounding>(apply<kOp>(x, z)));
  }
}

// Four sums side by side: additions do not wait for each other, and errors stay small.
float sum_of(const float* x, int64_t n) {
  Vector::Reg total[4] = {Vector::zero(), Vector::zero(), Vector::zero(), Vector::zero()};
  int64_t i = 0;
  for (; i + 4 * Vector::kWidth <= n; i += 4 * Vector::kWidth) {
    for (int v = 0; v < 4; ++v) total[v] = Vector::add(total[v], Vector::load(x + i + v * Vector::kWidth));
  }
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) total[0] = Vector::add(total[0], Vector::load(x + i));
  float rest = 0;
  for (; i < n; ++i) rest += x[i];
  return Vector::sum(Vector::add(Vector::add(total[0], total[1]), Vector::add(total[2], total[3]))) + rest;
}

float maximum_of(const float* x, int64_t n) {
  Vector::Reg best = Vector::broadcast(-__builtin_inff());
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) best = Vector::maximum(best, Vector::load(x + i));
  float top = Vector::largest(best);
  for (; i < n; ++i) top = top != top || top > x[i] ? top : x[i];
  return top;
}

template <typename T>
void widen_row(float* to, const void* from, int64_t n) {
  const T* x = static_cast<const T*>(from);
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) Vector::store(to + i, Vector::load(x + i));
  for (; i < n; ++i) to[i] = Vector::widen(x[i]);
}

template <typename T>
void narrow_row(void* to, const float* from, int64_t n) {
  T* y = static_cast<T*>(to);
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) Vector::store_exact(y + i, Vector::load(from + i));
  for (; i < n; ++i) Vector::narrow_exact(y + i, from[i]);
}

template <RowUnary kOp>
constexpr void fill_unary(RowKernels& kernels) {
  auto& entry = kernels.unary[static_cast<size_t>(kOp)];
  entry[0] = &unary<kOp, Rounding::kBFloat16>;
  entry[1] = &unary<kOp, Rounding::kFloat16>;
  entry[2] = &unary<kOp, Rounding::kNone>;
}

template <RowBinary kOp, RowForm kForm>
constexpr void fill_form(RowKernels& kernels) {
  auto& entry = kernels.binary[static_cast<size_t>(kOp)][static_cast<size_t>(kForm)];
  entry[0] = &binary<kOp, kForm, Rounding::kBFloat16>;
  entry[1] = &binary<kOp, kForm, Rounding::kFloat16>;
  entry[2] = &binary<kOp, kForm, Rounding::kNone>;
}

template <RowBinary kOp>
constexpr void fill_binary(RowKernels& kernels) {
  fill_form<kOp, RowForm::kRows>(kernels);
  fill_form<kOp, RowForm::kRightNumber>(kernels);
  fill_form<kOp, RowForm::kLeftNumber>(kernels);
}

constexpr RowKernels make_row_kernels(const char* name) {
  RowKernels kernels{};
  kernels.softmax = &softmax;
  fill_unary<RowUnary::kConvert>(kernels);
  fill_unary<RowUnary::kNegate>(kernels);
  fill_unary<RowUnary::kAbs>(kernels);
  fill_unary<RowUnary::kExponential>(kernels);
  fill_unary<RowUnary::kLogistic>(kernels);
  fill_unary<RowUnary::kTanh>(kernels);
  fill_unary<RowUnary::kErf>(kernels);
  fill_unary<RowUnary::kSqrt>(kernels);
  fill_unary<RowUnary::kRsqrt>(kernels);
  fill_binary<RowBinary::kAdd>(kernels);
  fill_binary<RowBinary::kSubtract>(kernels);
  fill_binary<RowBinary::kMultiply>(kernels);
  fill_binary<RowBinary::kDivide>(kernels);
  fill_binary<RowBinary::kMaximum>(kernels);
  fill_binary<RowBinary::kMinimum>(kernels);
  kernels.sum = &sum_of;
  kernels.maximum = &maximum_of;
  kernels.widen[0] = &widen_row<BFloat16>;
  kernels.widen[1] = &widen_row<Float16>;
  kernels.widen[2] = &widen_row<float>;
  kernels.narrow[0] = &narrow_row<BFloat16>;
  kernels.narrow[1] = &narrow_row<Float16>;
  kernels.narrow[2] = &narrow_row<float>;
  kernels.name = name;
  return kernels;
}
