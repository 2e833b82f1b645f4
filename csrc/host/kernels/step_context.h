// SPDX-License-Identifier: Apache-2.0
// StepContext: one step while it is being prepared. Values arrive as tensors bound to the program's memory, attributes
// as checked integers, and every complaint names the step and the op.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "host/program.h"

namespace nxl::host {

// Runs one step. Everything it needs was captured when it was prepared; it may throw.
using Kernel = std::function<void()>;

class StepContext {
 public:
  // `values` holds one tensor per value of the program and outlives the context; captured tensors share its storages.
  StepContext(const Program& program, const std::vector<at::Tensor>& values, size_t step_number);

  const std::string& op() const { return step_.op; }
  size_t num_inputs() const { return step_.inputs.size(); }
  size_t num_outputs() const { return step_.outputs.size(); }
  void expect(size_t inputs, size_t outputs) const;

  const at::Tensor& input(size_t i) const { return values_[step_.inputs[i]]; }
  const at::Tensor& output(size_t i) const { return values_[step_.outputs[i]]; }
  // True when the bytes of input i are already there and never change.
  bool is_constant(size_t i) const;

  void expect_dtype(const at::Tensor& tensor, at::ScalarType dtype, std::string_view what) const;
  void expect_same_dtype(const at::Tensor& tensor, const at::Tensor& other, std::string_view what) const;
  void expect_shape(const at::Tensor& tensor, at::IntArrayRef shape, std::string_view what) const;
  void expect_scalar(const at::Tensor& tensor, std::string_view what) const;
  void expect_integral(const at::Tensor& tensor, std::string_view what) const;

  const Json* find(std::string_view attribute) const { return step_.attributes.find(attribute); }
  int64_t integer(std::string_view attribute) const;
  int64_t integer_or(std::string_view attribute, int64_t absent) const;
  bool boolean_or(std::string_view attribute, bool absent) const;
  std::string text(std::string_view attribute) const;
  std::vector<int64_t> integers(std::string_view attribute) const;
  // Absent means `count` times `absent`; another length is refused.
  std::vector<int64_t> integers_or(std::string_view attribute, size_t count, int64_t absent) const;
  // A dimension number in [0, rank).
  int64_t dimension(std::string_view attribute, int64_t rank) const;
  // Distinct dimension numbers in [0, rank), in the order written; absent means none.
  std::vector<int64_t> dimensions(std::string_view attribute, int64_t rank) const;

  // Memory of this step alone, dense, uninitialised.
  static at::Tensor scratch(at::IntArrayRef shape, at::ScalarType dtype);

  template <typename... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (__builtin_expect(!condition, 0)) fail(ErrorKind::kInvalid, nxl::detail::concat(parts...));
  }
  [[noreturn]] void unsupported(std::string_view message) const { fail(ErrorKind::kUnsupported, message); }
  [[noreturn]] void fail(ErrorKind kind, std::string_view message) const;

 private:
  const Json& attribute(std::string_view name) const;
  void check_outputs() const;

  const Program& program_;
  const Step& step_;
  const std::vector<at::Tensor>& values_;
  size_t number_;
};

}  // namespace nxl::host
