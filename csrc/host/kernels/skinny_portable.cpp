// SPDX-License-Identifier: Apache-2.0
// Skinny products in plain C++: four lanes that any compiler maps to its vectors.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "host/kernels/skinny_kernels.h"

namespace nxl::host {

namespace {

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
  static Reg fma(Reg a, Reg b, Reg c) {
    for (int i = 0; i < kWidth; ++i) c.lane[i] += a.lane[i] * b.lane[i];
    return c;
  }
  static float sum(Reg value) { return (value.lane[0] + value.lane[2]) + (value.lane[1] + value.lane[3]); }
  template <typename T>
  static float widen(T value) {
    return static_cast<float>(value);
  }
};

#include "host/kernels/skinny_loops.h"

constexpr SkinnyKernels kKernels = {{&dot<c10::BFloat16>, &dot<c10::Half>, &dot<float>},
                                    {&axpy<c10::BFloat16>, &axpy<c10::Half>, &axpy<float>},
                                    "portable"};

}  // namespace

const SkinnyKernels& skinny_kernels_portable() { return kKernels; }

}  // namespace nxl::host
