// SPDX-License-Identifier: Apache-2.0
// real, imag, complex.
#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

template <bool imaginary>
Kernel prepare_part(StepContext& step) {
  step.expect(1, 1);
  const at::Tensor &x = step.input(0), &y = step.output(0);
  step.expect_shape(x, y.sizes(), "input 0");
  Kernel kernel;
  visit_type(ComplexTypes{}, x.scalar_type(), [&]<typename T>() {
    using Real = typename T::value_type;
    step.expect_dtype(y, c10::CppTypeToScalarType<Real>::value, "output 0");
    kernel = elementwise_loop<Real, T>(y, {x}, [](T z) { return imaginary ? z.imag() : z.real(); });
  });
  if (kernel) return kernel;
  // A real number is its own real part; its imaginary part is 0.
  step.expect_same_dtype(x, y, "input 0");
  visit_type(FloatTypes{}, x.scalar_type(), [&]<typename T>() {
    kernel = elementwise_loop<T, T>(y, {x}, [](T v) { return imaginary ? static_cast<T>(0.0f) : v; });
  });
  if (!kernel) step.unsupported("needs a complex or float operand");
  return kernel;
}

Kernel prepare_complex(StepContext& step) {
  step.expect(2, 1);
  const at::Tensor& y = step.output(0);
  Kernel kernel;
  visit_type(ComplexTypes{}, y.scalar_type(), [&]<typename T>() {
    using Real = typename T::value_type;
    for (size_t i = 0; i < 2; ++i) {
      const std::string what = nxl::detail::concat("input ", i);
      step.expect_shape(step.input(i), y.sizes(), what);
      step.expect_dtype(step.input(i), c10::CppTypeToScalarType<Real>::value, what);
    }
    kernel =
        elementwise_loop<T, Real, Real>(y, {step.input(0), step.input(1)}, [](Real re, Real im) { return T(re, im); });
  });
  if (!kernel) step.unsupported("the output must be c64 or c128");
  return kernel;
}

constexpr KernelEntry kKernels[] = {
    {"complex", prepare_complex}, {"imag", prepare_part<true>}, {"real", prepare_part<false>}};

}  // namespace

std::span<const KernelEntry> complex_kernels() { return kKernels; }

}  // namespace nxl::host
