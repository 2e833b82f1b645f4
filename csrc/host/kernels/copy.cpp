// SPDX-License-Identifier: Apache-2.0
// copy, convert, iota.
#include <ATen/core/Tensor.h>
#include <ATen/ops/copy_native.h>

#include <limits>

#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"
#include "host/kernels/strided.h"

namespace nxl::host {

namespace {

Kernel aten_copy(const at::Tensor& to, const at::Tensor& from) {
  return [to = to, from = from]() mutable { at::native::copy_(to, from); };
}

// Same dtype and shape.
Kernel copy_between(const at::Tensor& to, const at::Tensor& from) {
  const BoundLoop<2> loop({to, from});
  const auto width = static_cast<int64_t>(to.element_size());
  // A transposing copy of some size belongs to ATen, which works in tiles.
  const bool reads_dense = loop.nest().inner_strides()[1] <= width;
  if (!reads_dense && loop.nest().count() > 4096) return aten_copy(to, from);
  return [loop, width] {
    loop.run([width](const auto& p, const auto& s, int64_t n) { copy_run(p[0], s[0], p[1], s[1], n, width); });
  };
}

Kernel prepare_copy(StepContext& step) {
  step.expect(1, 1);
  step.expect_same_dtype(step.input(0), step.output(0), "input 0");
  step.expect_shape(step.input(0), step.output(0).sizes(), "input 0");
  return copy_between(step.output(0), step.input(0));
}

// Truncates; what does not fit becomes the nearest value that does, NaN becomes 0.
template <typename To, typename From>
To to_integer(From x) {
  using Wide = std::conditional_t<std::is_same_v<From, double>, double, float>;
  const Wide value = static_cast<Wide>(x);
  if (value != value) return 0;
  if (value <= static_cast<Wide>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  if (value >= static_cast<Wide>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

// The real parts of a complex window: every other element of the same memory.
at::Tensor real_parts(const at::Tensor& x) {
  std::vector<int64_t> strides(x.strides().begin(), x.strides().end());
  for (int64_t& stride : strides) stride *= 2;
  auto view =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(x.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                               c10::scalarTypeToTypeMeta(c10::toRealValueType(x.scalar_type())));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), strides, x.storage_offset() * 2);
  return view;
}

Kernel prepare_convert(StepContext& step) {
  step.expect(1, 1);
  const bool drops_imaginary = c10::isComplexType(step.input(0).scalar_type()) &&
                               !c10::isComplexType(step.output(0).scalar_type()) &&
                               step.output(0).scalar_type() != at::kBool;
  const at::Tensor x = drops_imaginary ? real_parts(step.input(0)) : step.input(0);
  const at::Tensor& y = step.output(0);
  step.expect_shape(x, y.sizes(), "input 0");
  if (x.scalar_type() == y.scalar_type()) return copy_between(y, x);
  Kernel kernel;
  if (c10::isFloatingType(x.scalar_type()) && c10::isIntegralType(y.scalar_type(), /*includeBool=*/false)) {
    visit_type(AllFloatTypes{}, x.scalar_type(), [&]<typename From>() {
      visit_type(IntegerTypes{}, y.scalar_type(), [&]<typename To>() {
        kernel = elementwise_loop<To, From>(y, {x}, [](From v) { return to_integer<To, From>(v); });
      });
    });
    return kernel;
  }
  return aten_copy(y, x);
}

Kernel prepare_iota(StepContext& step) {
  step.expect(0, 1);
  const at::Tensor& y = step.output(0);
  const int64_t dim = step.dimension("dim", y.dim());
  // The row is made once; a run spreads it.
  at::Tensor row = StepContext::scratch({y.size(dim)}, y.scalar_type());
  const bool known = visit_type(NumberTypes{}, y.scalar_type(), [&]<typename T>() {
    T* p = static_cast<T*>(row.mutable_data_ptr());
    for (int64_t i = 0; i < y.size(dim); ++i) {
      if constexpr (c10::is_complex<T>::value) {
        p[i] = T(static_cast<typename T::value_type>(i), 0);
      } else {
        p[i] = static_cast<T>(i);
      }
    }
  });
  if (!known) step.unsupported("iota of this dtype; convert from f32 instead");
  std::vector<int64_t> strides(static_cast<size_t>(y.dim()), 0);
  strides[static_cast<size_t>(dim)] = 1;
  const BoundLoop<2> loop({y, rewindow(row, y.sizes(), strides, 0)});
  const auto width = static_cast<int64_t>(y.element_size());
  return [loop, width] {
    loop.run([width](const auto& p, const auto& s, int64_t n) { copy_run(p[0], s[0], p[1], s[1], n, width); });
  };
}

constexpr KernelEntry kKernels[] = {{"copy", prepare_copy}, {"convert", prepare_convert}, {"iota", prepare_iota}};

}  // namespace

std::span<const KernelEntry> copy_kernels() { return kKernels; }

}  // namespace nxl::host
