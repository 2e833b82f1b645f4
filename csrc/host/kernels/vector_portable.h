// SPDX-License-Identifier: Apache-2.0
// Vectors of four floats in plain C++, which any compiler maps to its own. Included inside an anonymous namespace, so
// nothing here is shared between files; row_loops.h and skinny_loops.h say what a Vector offers.

using BFloat16 = c10::BFloat16;
using Float16 = c10::Half;

struct Vector {
  struct Reg {
    float lane[4];
  };
  static constexpr int kWidth = 4;
  static Reg zero() { return {{0, 0, 0, 0}}; }
  static Reg broadcast(float value) { return {{value, value, value, value}}; }
  template <typename T>
  static Reg load(const T* p) {
    return {{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}};
  }
  static void store(float* p, Reg value) {
    for (int i = 0; i < kWidth; ++i) p[i] = value.lane[i];
  }
  template <typename T>
  static void store_exact(T* p, Reg value) {
    for (int i = 0; i < kWidth; ++i) narrow_exact(p + i, value.lane[i]);
  }
  template <typename T>
  static void narrow_exact(T* p, float value) {
    *p = static_cast<T>(value);
  }
  static Reg fma(Reg a, Reg b, Reg c) {
    for (int i = 0; i < kWidth; ++i) c.lane[i] += a.lane[i] * b.lane[i];
    return c;
  }
  static Reg add(Reg a, Reg b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static Reg sub(Reg a, Reg b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] -= b.lane[i];
    return a;
  }
  static Reg mul(Reg a, Reg b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] *= b.lane[i];
    return a;
  }
  static Reg div(Reg a, Reg b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] = a.lane[i] / b.lane[i];
    return a;
  }
  static Reg sqrt(Reg x) {
    for (int i = 0; i < kWidth; ++i) x.lane[i] = std::sqrt(x.lane[i]);
    return x;
  }
  static Reg negate(Reg x) {
    for (int i = 0; i < kWidth; ++i) x.lane[i] = -x.lane[i];
    return x;
  }
  static Reg abs(Reg x) {
    for (int i = 0; i < kWidth; ++i) x.lane[i] = std::fabs(x.lane[i]);
    return x;
  }
  static Reg tanh(Reg x) {
    for (int i = 0; i < kWidth; ++i) x.lane[i] = std::tanh(x.lane[i]);
    return x;
  }
  static Reg erf(Reg x) {
    for (int i = 0; i < kWidth; ++i) x.lane[i] = std::erf(x.lane[i]);
    return x;
  }
  static Reg exp(Reg x) {
    for (int i = 0; i < kWidth; ++i) x.lane[i] = std::exp(x.lane[i]);
    return x;
  }
  // NaN of either side wins.
  static Reg maximum(Reg a, Reg b) {
    for (int i = 0; i < kWidth; ++i)
      a.lane[i] = a.lane[i] != a.lane[i] || a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
  }
  static Reg minimum(Reg a, Reg b) {
    for (int i = 0; i < kWidth; ++i)
      a.lane[i] = a.lane[i] != a.lane[i] || a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
  }
  static float largest(Reg value) {
    float best = value.lane[0];
    for (int i = 1; i < kWidth; ++i) best = best != best || best > value.lane[i] ? best : value.lane[i];
    return best;
  }
  static Reg keep(Reg value, const uint8_t* flags, Reg otherwise) {
    for (int i = 0; i < kWidth; ++i) value.lane[i] = flags[i] != 0 ? value.lane[i] : otherwise.lane[i];
    return value;
  }
  static Reg round_bfloat16(Reg value) {
    for (int i = 0; i < kWidth; ++i) value.lane[i] = widen(BFloat16(value.lane[i]));
    return value;
  }
  static Reg round_float16(Reg value) {
    for (int i = 0; i < kWidth; ++i) value.lane[i] = widen(Float16(value.lane[i]));
    return value;
  }
  static float sum(Reg value) { return (value.lane[0] + value.lane[2]) + (value.lane[1] + value.lane[3]); }
  template <typename T>
  static float widen(T value) {
    return static_cast<float>(value);
  }
};
