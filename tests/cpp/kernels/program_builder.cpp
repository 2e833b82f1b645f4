// SPDX-License-Identifier: Apache-2.0
// Programs from tensors.
#include "program_builder.h"

#include <ATen/Parallel.h>

#include <cstring>

namespace nxl::host::testing {

namespace {

// The oracles are tiny; a second thread would only wait for a CPU. Programs set their own count.
class OneThread : public ::testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
const auto* const kOneThread = ::testing::AddGlobalTestEnvironment(new OneThread);

}  // namespace

DType dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return DType::kBool;
    case at::kChar:
      return DType::kInt8;
    case at::kByte:
      return DType::kUInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kUInt16:
      return DType::kUInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kUInt32:
      return DType::kUInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kUInt64:
      return DType::kUInt64;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kFloat8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case at::kFloat8_e5m2:
      return DType::kFloat8E5M2;
    case at::kComplexFloat:
      return DType::kComplex64;
    case at::kComplexDouble:
      return DType::kComplex128;
    default:
      throw std::invalid_argument("no such dtype in a program");
  }
}

uint32_t ProgramBuilder::value(uint32_t buffer, const at::Tensor& tensor) {
  program_.values.push_back(
      {buffer, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()});
  return static_cast<uint32_t>(program_.values.size() - 1);
}

uint32_t ProgramBuilder::input(const at::Tensor& tensor) {
  neff::Variable variable;
  variable.bytes = tensor.storage().nbytes();
  const auto index = static_cast<uint32_t>(program_.inputs.size());
  program_.inputs.push_back(variable);
  inputs_.push_back(tensor);
  program_.buffers.push_back({Buffer::Kind::kInput, index, 0, variable.bytes});
  return value(static_cast<uint32_t>(program_.buffers.size() - 1), tensor);
}

uint32_t ProgramBuilder::output(const at::Tensor& tensor) {
  neff::Variable variable;
  variable.bytes = tensor.storage().nbytes();
  const auto index = static_cast<uint32_t>(program_.outputs.size());
  program_.outputs.push_back(variable);
  outputs_.push_back(tensor);
  program_.buffers.push_back({Buffer::Kind::kOutput, index, 0, variable.bytes});
  return value(static_cast<uint32_t>(program_.buffers.size() - 1), tensor);
}

uint32_t ProgramBuilder::constant(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  const uint64_t offset = (program_.constants.size() + 63) / 64 * 64;
  program_.constants.resize(offset + dense.nbytes());
  std::memcpy(program_.constants.data() + offset, dense.const_data_ptr(), dense.nbytes());
  program_.buffers.push_back({Buffer::Kind::kConstant, 0, offset, dense.nbytes()});
  program_.values.push_back({static_cast<uint32_t>(program_.buffers.size() - 1), dtype_of(dense.scalar_type()),
                             dense.sizes().vec(), dense.strides().vec(), 0});
  return static_cast<uint32_t>(program_.values.size() - 1);
}

uint32_t ProgramBuilder::temporary(at::IntArrayRef shape, at::ScalarType dtype) {
  const at::Tensor dense = at::empty(shape, dtype);
  const uint64_t offset = (program_.arena_bytes + 63) / 64 * 64;
  program_.arena_bytes = offset + dense.nbytes();
  program_.buffers.push_back({Buffer::Kind::kArena, 0, offset, dense.nbytes()});
  return value(static_cast<uint32_t>(program_.buffers.size() - 1), dense);
}

ProgramBuilder& ProgramBuilder::step(const std::string& op, std::vector<uint32_t> in, std::vector<uint32_t> out,
                                     const std::string& attributes) {
  program_.steps.push_back({op, std::move(in), std::move(out), Json::parse(attributes)});
  return *this;
}

std::unique_ptr<PreparedProgram> ProgramBuilder::prepare() {
  arena_.resize(program_.arena_bytes);
  return PreparedProgram::prepare(program_, arena_);
}

Status ProgramBuilder::run(int threads) {
  std::vector<void*> inputs, outputs;
  for (const at::Tensor& tensor : inputs_) inputs.push_back(tensor.storage().mutable_data());
  for (const at::Tensor& tensor : outputs_) outputs.push_back(tensor.storage().mutable_data());
  return prepare()->run(inputs, outputs, threads);
}

void run_step(const std::string& op, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
              const std::string& attributes, int threads) {
  ProgramBuilder builder;
  std::vector<uint32_t> in, out;
  for (const at::Tensor& tensor : inputs) in.push_back(builder.input(tensor));
  for (const at::Tensor& tensor : outputs) out.push_back(builder.output(tensor));
  const Status status = builder.step(op, in, out, attributes).run(threads);
  ASSERT_TRUE(status.is_ok()) << status.message;
}

void run_in_place(const std::string& op, const std::vector<at::Tensor>& inputs, const at::Tensor& target,
                  const std::string& attributes) {
  ProgramBuilder builder;
  std::vector<uint32_t> in;
  for (const at::Tensor& tensor : inputs) in.push_back(builder.input(tensor));
  const Status status = builder.step(op, in, {builder.target(target)}, attributes).run();
  ASSERT_TRUE(status.is_ok()) << status.message;
}

void expect_refused(const std::string& op, const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& outputs, const std::string& attributes, ErrorKind kind,
                    const std::string& part) {
  ProgramBuilder builder;
  std::vector<uint32_t> in, out;
  for (const at::Tensor& tensor : inputs) in.push_back(builder.input(tensor));
  for (const at::Tensor& tensor : outputs) out.push_back(builder.output(tensor));
  builder.step(op, in, out, attributes);
  try {
    builder.prepare();
    ADD_FAILURE() << op << " " << attributes << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    const std::string message = error.what();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("step 0 (" + op + ")"), std::string::npos) << message;
  }
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double rtol, double atol,
                  const std::string& what) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const auto plain = [](const at::Tensor& t) {
    if (t.is_complex()) return at::view_as_real(t.to(at::kComplexDouble));
    // uint64 does not fit a double or an int64, so it compares as bits.
    if (t.scalar_type() == at::kUInt64) return t.contiguous().view(at::kLong);
    return t.is_floating_point() ? t.to(at::kDouble) : t.to(at::kLong);
  };
  const at::Tensor a = plain(actual), e = plain(expected);
  const bool close = a.is_floating_point() ? at::allclose(a, e, rtol, atol, /*equal_nan=*/true) : at::equal(a, e);
  EXPECT_TRUE(close) << what << "\nactual\n"
                     << a.flatten().slice(0, 0, 64) << "\nexpected\n"
                     << e.flatten().slice(0, 0, 64);
}

at::Tensor in_odd_layout(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return tensor;
  if (tensor.dim() == 0) {
    const at::Tensor memory = at::empty({3}, tensor.options());
    memory.select(0, 1).copy_(tensor);
    return memory.select(0, 1);
  }
  std::vector<int64_t> reversed(tensor.sizes().rbegin(), tensor.sizes().rend());
  reversed.back() = reversed.back() * 2 + 1;
  at::Tensor view = at::empty(reversed, tensor.options());
  std::vector<int64_t> order;
  for (int64_t d = tensor.dim(); d-- > 0;) order.push_back(d);
  view = view.permute(order).slice(0, 1, tensor.size(0) * 2 + 1, 2);
  view.copy_(tensor);
  return view;
}

at::Tensor sample(at::IntArrayRef shape, at::ScalarType dtype, double scale, bool special) {
  if (dtype == at::kBool) return at::rand(shape) > 0.5;
  if (c10::isIntegralType(dtype, false)) {
    const bool is_unsigned = dtype == at::kByte || dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64;
    return at::randint(is_unsigned ? 0 : -100, 101, shape, at::kLong).to(dtype);
  }
  if (c10::isComplexType(dtype)) return (at::randn(shape, dtype) * scale);
  at::Tensor values = (at::randn(shape, at::kDouble) * scale);
  if (special && values.numel() >= 8) {
    const double inf = std::numeric_limits<double>::infinity();
    const double hurt[] = {std::numeric_limits<double>::quiet_NaN(), inf, -inf, 0.0, -0.0, 1e-40, -1e-40, 1.0};
    double* p = values.mutable_data_ptr<double>();
    for (int i = 0; i < 8; ++i) p[i] = hurt[i];
  }
  return values.to(dtype);
}

}  // namespace nxl::host::testing
