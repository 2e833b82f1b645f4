// SPDX-License-Identifier: Apache-2.0
// Operands, attributes and complaints of one step.
#include "host/kernels/step_context.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

namespace nxl::host {

namespace {

// True when two elements of the window may share memory. Sorted by stride, each dimension must step over everything
// the smaller ones cover; windows made by slices, transposes and reshapes all do.
bool may_overlap_itself(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  std::vector<size_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), size_t{0});
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t extent = 1;
  for (size_t d : order) {
    if (sizes[d] == 1) continue;
    if (strides[d] < extent) return true;
    extent += strides[d] * (sizes[d] - 1);
  }
  return false;
}

}  // namespace

StepContext::StepContext(const Program& program, const std::vector<at::Tensor>& values, size_t step_number)
    : program_(program), step_(program.steps[step_number]), values_(values), number_(step_number) {
  for (uint32_t value : step_.inputs) require(value < values_.size(), "input value ", value, " does not exist");
  for (uint32_t value : step_.outputs) require(value < values_.size(), "output value ", value, " does not exist");
  check_outputs();
}

void StepContext::check_outputs() const {
  for (size_t i = 0; i < num_outputs(); ++i) {
    const Value& value = program_.values[step_.outputs[i]];
    require(program_.buffers[value.buffer].kind != Buffer::Kind::kConstant, "output ", i, " lies in a constant");
    require(!may_overlap_itself(output(i)), "output ", i, " is a window whose elements overlap each other: shape ",
            output(i).sizes(), ", strides ", output(i).strides());
  }
}

void StepContext::expect(size_t inputs, size_t outputs) const {
  require(num_inputs() == inputs && num_outputs() == outputs, "takes ", inputs, " inputs and ", outputs,
          " outputs; the step has ", num_inputs(), " and ", num_outputs());
}

bool StepContext::is_constant(size_t i) const {
  return program_.buffers[program_.values[step_.inputs[i]].buffer].kind == Buffer::Kind::kConstant;
}

void StepContext::expect_dtype(const at::Tensor& tensor, at::ScalarType dtype, std::string_view what) const {
  require(tensor.scalar_type() == dtype, what, " has dtype ", c10::toString(tensor.scalar_type()), "; the op needs ",
          c10::toString(dtype));
}

void StepContext::expect_same_dtype(const at::Tensor& tensor, const at::Tensor& other, std::string_view what) const {
  expect_dtype(tensor, other.scalar_type(), what);
}

void StepContext::expect_shape(const at::Tensor& tensor, at::IntArrayRef shape, std::string_view what) const {
  require(tensor.sizes() == shape, what, " has shape ", tensor.sizes(), "; the op needs ", shape);
}

void StepContext::expect_scalar(const at::Tensor& tensor, std::string_view what) const {
  require(tensor.dim() == 0, what, " has shape ", tensor.sizes(), "; the op needs a scalar, shape []");
}

void StepContext::expect_integral(const at::Tensor& tensor, std::string_view what) const {
  require(c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false), what, " has dtype ",
          c10::toString(tensor.scalar_type()), "; the op needs an integer type");
}

const Json& StepContext::attribute(std::string_view name) const {
  const Json* found = find(name);
  require(found != nullptr, "attribute `", name, "` is absent");
  return *found;
}

int64_t StepContext::integer(std::string_view name) const { return attribute(name).as_int(name); }

int64_t StepContext::integer_or(std::string_view name, int64_t absent) const {
  const Json* found = find(name);
  return found == nullptr ? absent : found->as_int(name);
}

bool StepContext::boolean_or(std::string_view name, bool absent) const {
  const Json* found = find(name);
  if (found == nullptr) return absent;
  return found->is_int() ? found->as_int(name) != 0 : found->as_bool(name);
}

std::string StepContext::text(std::string_view name) const { return attribute(name).as_string(name); }

std::vector<int64_t> StepContext::integers(std::string_view name) const { return attribute(name).as_ints(name); }

std::vector<int64_t> StepContext::integers_or(std::string_view name, size_t count, int64_t absent) const {
  if (find(name) == nullptr) return std::vector<int64_t>(count, absent);
  std::vector<int64_t> list = integers(name);
  require(list.size() == count, "attribute `", name, "` has ", list.size(), " entries; the op needs ", count);
  return list;
}

int64_t StepContext::dimension(std::string_view name, int64_t rank) const {
  const int64_t value = integer(name);
  require(value >= 0 && value < rank, "attribute `", name, "` is ", value, "; the rank is ", rank);
  return value;
}

std::vector<int64_t> StepContext::dimensions(std::string_view name, int64_t rank) const {
  if (find(name) == nullptr) return {};
  std::vector<int64_t> list = integers(name);
  std::vector<bool> seen(static_cast<size_t>(rank), false);
  for (int64_t d : list) {
    require(d >= 0 && d < rank, "attribute `", name, "` names dimension ", d, "; the rank is ", rank);
    require(!seen[static_cast<size_t>(d)], "attribute `", name, "` names dimension ", d, " twice");
    seen[static_cast<size_t>(d)] = true;
  }
  return list;
}

at::Tensor StepContext::scratch(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions().dtype(dtype));
}

void StepContext::fail(ErrorKind kind, std::string_view message) const {
  throw_error(kind, nxl::detail::concat("step ", number_, " (", op(), "): ", message));
}

}  // namespace nxl::host
