// SPDX-License-Identifier: Apache-2.0
// Builds one-step (or few-step) programs from tensors and runs them: the tests' way to a kernel.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "host/kernels/prepared_program.h"

namespace nxl::host::testing {

DType dtype_of(at::ScalarType dtype);

// A program whose values are windows on whole arguments: every tensor's storage is one input or output buffer.
class ProgramBuilder {
 public:
  // The tensor is an input with this window (sizes, strides, offset as they are; its storage is the buffer).
  uint32_t input(const at::Tensor& tensor);
  uint32_t output(const at::Tensor& tensor);
  // An input whose memory is also written: the step may name it among its outputs.
  uint32_t target(const at::Tensor& tensor) { return input(tensor); }
  // The tensor's bytes become a constant.
  uint32_t constant(const at::Tensor& tensor);
  // A dense value in the arena.
  uint32_t temporary(at::IntArrayRef shape, at::ScalarType dtype);
  ProgramBuilder& step(const std::string& op, std::vector<uint32_t> in, std::vector<uint32_t> out,
                       const std::string& attributes = "{}");

  Program& program() { return program_; }
  std::unique_ptr<PreparedProgram> prepare();
  Status run(int threads = 1);  // prepares, then runs on the tensors given

 private:
  uint32_t value(uint32_t buffer, const at::Tensor& tensor);

  Program program_;
  std::vector<at::Tensor> inputs_, outputs_;
  std::vector<std::byte> arena_;
};

// Runs one step and expects success: `outputs` are written in place.
void run_step(const std::string& op, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
              const std::string& attributes = "{}", int threads = 1);

// The same on a target in place: `target` is written and is no input of the step.
void run_in_place(const std::string& op, const std::vector<at::Tensor>& inputs, const at::Tensor& target,
                  const std::string& attributes = "{}");

// Expects prepare() to refuse the step, with an error of this kind whose message contains `part`.
void expect_refused(const std::string& op, const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& outputs, const std::string& attributes, ErrorKind kind,
                    const std::string& part);

// Same dtype and shape, and equal within tolerances; NaN equals NaN.
void expect_close(const at::Tensor& actual, const at::Tensor& expected, double rtol = 0, double atol = 0,
                  const std::string& what = "");

// The same values in another layout: transposed memory order with a gap between rows.
at::Tensor in_odd_layout(const at::Tensor& tensor);

// Values that hurt: random ones, and for floats NaN, infinities, signed zeros, denormals.
at::Tensor sample(at::IntArrayRef shape, at::ScalarType dtype, double scale = 2.0, bool special = false);

}  // namespace nxl::host::testing
