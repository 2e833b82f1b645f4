// SPDX-License-Identifier: Apache-2.0
// The loops of skinny_kernels.h over a vector type. Each instruction set's file defines its `Vector` and includes this
// once, inside its own anonymous namespace, so nothing here is shared between files. Vector offers:
//   Reg, kWidth, zero(), broadcast(float), load(const T*) widening T to f32, store(float*, Reg), fma(a, b, c),
//   sum(Reg).

template <typename T, int kRows, int kWeightRows>
void dot_block(const float* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t k, float* y, int64_t y_stride) {
  Vector::Reg total[kWeightRows][kRows];
  for (int j = 0; j < kWeightRows; ++j) {
    for (int m = 0; m < kRows; ++m) total[j][m] = Vector::zero();
  }
  int64_t i = 0;
  for (; i + Vector::kWidth <= k; i += Vector::kWidth) {
    Vector::Reg row[kRows];
    for (int m = 0; m < kRows; ++m) row[m] = Vector::load(x + m * x_stride + i);
    for (int j = 0; j < kWeightRows; ++j) {
      const Vector::Reg weight = Vector::load(w + j * w_stride + i);
      for (int m = 0; m < kRows; ++m) total[j][m] = Vector::fma(weight, row[m], total[j][m]);
    }
  }
  for (int j = 0; j < kWeightRows; ++j) {
    for (int m = 0; m < kRows; ++m) {
      float rest = Vector::sum(total[j][m]);
      for (int64_t t = i; t < k; ++t) rest += Vector::widen(w[j * w_stride + t]) * x[m * x_stride + t];
      y[m * y_stride + j] = rest;
    }
  }
}

template <typename T, int kRows>
void dot_rows(const float* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t k, int64_t n, float* y,
              int64_t y_stride) {
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) dot_block<T, kRows, 4>(x, x_stride, w + j * w_stride, w_stride, k, y + j, y_stride);
  for (; j < n; ++j) dot_block<T, kRows, 1>(x, x_stride, w + j * w_stride, w_stride, k, y + j, y_stride);
}

template <typename T>
void dot(int rows, const float* x, int64_t x_stride, const void* w, int64_t w_stride, int64_t k, int64_t n, float* y,
         int64_t y_stride) {
  const T* weights = static_cast<const T*>(w);
  switch (rows) {
    case 1:
      return dot_rows<T, 1>(x, x_stride, weights, w_stride, k, n, y, y_stride);
    case 2:
      return dot_rows<T, 2>(x, x_stride, weights, w_stride, k, n, y, y_stride);
    case 3:
      return dot_rows<T, 3>(x, x_stride, weights, w_stride, k, n, y, y_stride);
    default:
      return dot_rows<T, 4>(x, x_stride, weights, w_stride, k, n, y, y_stride);
  }
}

template <typename T, int kRows, int kVectors>
void axpy_block(const float* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t k, float* y, int64_t y_stride) {
  Vector::Reg total[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) total[m][v] = Vector::zero();
  }
  for (int64_t i = 0; i < k; ++i) {
    Vector::Reg factor[kRows];
    for (int m = 0; m < kRows; ++m) factor[m] = Vector::broadcast(x[m * x_stride + i]);
    for (int v = 0; v < kVectors; ++v) {
      const Vector::Reg weight = Vector::load(w + i * w_stride + v * Vector::kWidth);
      for (int m = 0; m < kRows; ++m) total[m][v] = Vector::fma(weight, factor[m], total[m][v]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) Vector::store(y + m * y_stride + v * Vector::kWidth, total[m][v]);
  }
}

template <typename T, int kRows>
void axpy_rows(const float* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t k, int64_t n, float* y,
               int64_t y_stride) {
  constexpr int kVectors = kRows == 1 ? 8 : 4;
  int64_t j = 0;
  for (; j + kVectors * Vector::kWidth <= n; j += kVectors * Vector::kWidth) {
    axpy_block<T, kRows, kVectors>(x, x_stride, w + j, w_stride, k, y + j, y_stride);
  }
  for (; j + Vector::kWidth <= n; j += Vector::kWidth) {
    axpy_block<T, kRows, 1>(x, x_stride, w + j, w_stride, k, y + j, y_stride);
  }
  for (; j < n; ++j) {
    for (int m = 0; m < kRows; ++m) {
      float total = 0;
      for (int64_t i = 0; i < k; ++i) total += Vector::widen(w[i * w_stride + j]) * x[m * x_stride + i];
      y[m * y_stride + j] = total;
    }
  }
}

template <typename T>
void axpy(int rows, const float* x, int64_t x_stride, const void* w, int64_t w_stride, int64_t k, int64_t n, float* y,
          int64_t y_stride) {
  const T* weights = static_cast<const T*>(w);
  switch (rows) {
    case 1:
      return axpy_rows<T, 1>(x, x_stride, weights, w_stride, k, n, y, y_stride);
    case 2:
      return axpy_rows<T, 2>(x, x_stride, weights, w_stride, k, n, y, y_stride);
    case 3:
      return axpy_rows<T, 3>(x, x_stride, weights, w_stride, k, n, y, y_stride);
    default:
      return axpy_rows<T, 4>(x, x_stride, weights, w_stride, k, n, y, y_stride);
  }
}
