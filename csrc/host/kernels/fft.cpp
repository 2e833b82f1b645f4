// SPDX-License-Identifier: Apache-2.0
// fft over the last dimensions: FFT, IFFT (divided by the number of points), RFFT, IRFFT.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fft_c2c.h>
#include <ATen/ops/_fft_c2r.h>
#include <ATen/ops/_fft_r2c.h>
#include <ATen/ops/copy_native.h>

#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"

namespace nxl::host {

namespace {

// ATen's names for how a transform is scaled.
constexpr int64_t kUnscaled = 0;
constexpr int64_t kByPoints = 2;

Kernel prepare_fft(StepContext& step) {
  step.expect(1, 1);
  const at::Tensor &x = step.input(0), &y = step.output(0);
  const std::string type = step.text("type");
  const std::vector<int64_t> length = step.integers("length");
  const auto points = static_cast<int64_t>(length.size());
  step.require(points >= 1 && points <= 3 && points <= x.dim(), "attribute `length` has ", points,
               " entries; the op needs 1 to 3, and no more than the rank ", x.dim());
  const bool to_complex = type == "RFFT", to_real = type == "IRFFT";
  step.require(to_complex || to_real || type == "FFT" || type == "IFFT", "attribute `type` is `", type,
               "`; known are FFT, IFFT, RFFT and IRFFT");
  std::vector<int64_t> dims, x_shape = x.sizes().vec(), y_shape = x_shape;
  for (int64_t i = 0; i < points; ++i) {
    const int64_t d = x.dim() - points + i;
    const int64_t size = length[static_cast<size_t>(i)];
    step.require(size >= 1, "attribute `length` has an entry of ", size, "; it must be at least 1");
    dims.push_back(d);
    x_shape[static_cast<size_t>(d)] = y_shape[static_cast<size_t>(d)] = size;
  }
  if (to_complex) y_shape.back() = length.back() / 2 + 1;
  if (to_real) x_shape.back() = length.back() / 2 + 1;
  step.expect_shape(x, x_shape, "input 0");
  step.expect_shape(y, y_shape, "output 0");
  const at::ScalarType complex = to_complex ? y.scalar_type() : x.scalar_type();
  if (complex != at::kComplexFloat && complex != at::kComplexDouble) {
    step.unsupported(nxl::detail::concat("needs c64 or c128; the step has ", c10::toString(complex)));
  }
  step.expect_dtype(to_complex ? x : y, to_complex || to_real ? c10::toRealValueType(complex) : complex,
                    to_complex ? "input 0" : "output 0");
  if (y.numel() == 0) return [] {};
  if (to_complex) {
    return [x = x, y = y, dims]() mutable { at::native::copy_(y, at::_fft_r2c(x, dims, kUnscaled, true)); };
  }
  if (to_real) {
    return [x = x, y = y, dims, last = length.back()]() mutable {
      at::native::copy_(y, at::_fft_c2r(x, dims, kByPoints, last));
    };
  }
  const bool forward = type == "FFT";
  return [x = x, y = y, dims, forward]() mutable {
    at::native::copy_(y, at::_fft_c2c(x, dims, forward ? kUnscaled : kByPoints, forward));
  };
}

constexpr KernelEntry kKernels[] = {{"fft", prepare_fft}};

}  // namespace

std::span<const KernelEntry> fft_kernels() { return kKernels; }

}  // namespace nxl::host
