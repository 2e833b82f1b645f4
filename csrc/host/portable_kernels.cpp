// SPDX-License-Identifier: Apache-2.0
// The kernels of a build without torch: copy, add and multiply in f32, and the collectives. They let the runtime around
// them be tested under the sanitizers, which torch's libraries do not support; a wheel never contains this file.
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/error.h"
#include "host/collectives/collective.h"
#include "host/kernels/prepared_program.h"

namespace nxl::host {
namespace {

class PortableProgram : public PreparedProgram {
 public:
  PortableProgram(const Program& program, std::span<std::byte> arena, const std::shared_ptr<World>& world)
      : program_(program), arena_(arena) {
    for (size_t i = 0; i < program.steps.size(); ++i) {
      const bool waits = is_collective(program.steps[i].op);
      collectives_.push_back(waits ? std::make_unique<Collective>(program, i, world) : nullptr);
      if (!waits) check(program.steps[i], i);
    }
  }

  Status run(std::span<void* const> inputs, std::span<void* const> outputs, int) override {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (!collectives_[i]) {
        run_step(step, inputs, outputs);
        continue;
      }
      // Its operands are dense in every program that hostcc makes.
      collectives_[i]->run(address(program_.values[step.inputs[0]], inputs, outputs),
                           address(program_.values[step.outputs[0]], inputs, outputs));
    }
    return Status::ok();
  }

 private:
  void check(const Step& step, size_t index) const {
    const bool copies = step.op == "copy";
    NXL_CHECK(copies || step.op == "add" || step.op == "multiply", kUnsupported, "step ", index, ": no kernel for '",
              step.op, "'");
    NXL_CHECK(step.inputs.size() == (copies ? 1u : 2u) && step.outputs.size() == 1, kInvalid, "step ", index, " (",
              step.op, "): wrong number of operands");
    const Value& out = program_.values[step.outputs[0]];
    NXL_CHECK(copies || out.dtype == DType::kFloat32, kUnsupported, "step ", index, " (", step.op, "): f32 only");
    for (const uint32_t input : step.inputs) {
      const Value& in = program_.values[input];
      NXL_CHECK(in.dtype == out.dtype && in.shape == out.shape, kInvalid, "step ", index, " (", step.op, "): value ",
                input, " has another dtype or shape than the result");
    }
  }

  std::byte* address(const Value& value, std::span<void* const> inputs, std::span<void* const> outputs) const {
    const Buffer& buffer = program_.buffers[value.buffer];
    std::byte* base = nullptr;
    switch (buffer.kind) {
      case Buffer::Kind::kInput:
        base = static_cast<std::byte*>(inputs[buffer.index]);
        break;
      case Buffer::Kind::kOutput:
        base = static_cast<std::byte*>(outputs[buffer.index]);
        break;
      case Buffer::Kind::kConstant:  // read only, which Program has checked
        base = const_cast<std::byte*>(program_.constants.data()) + buffer.offset;
        break;
      case Buffer::Kind::kArena:
        base = arena_.data() + buffer.offset;
        break;
    }
    return base + static_cast<uint64_t>(value.offset) * dtype_size(value.dtype);
  }

  void run_step(const Step& step, std::span<void* const> inputs, std::span<void* const> outputs) const {
    const Value& out = program_.values[step.outputs[0]];
    const Value& left = program_.values[step.inputs[0]];
    const Value& right = program_.values[step.inputs.back()];
    const std::array<const Value*, 3> values{&out, &left, &right};
    std::array<std::byte*, 3> at{address(out, inputs, outputs), address(left, inputs, outputs),
                                 address(right, inputs, outputs)};
    const size_t size = dtype_size(out.dtype);
    const auto apply = [&] {
      if (step.op == "copy") {
        std::memmove(at[0], at[1], size);
        return;
      }
      float a, b;
      std::memcpy(&a, at[1], sizeof(a));
      std::memcpy(&b, at[2], sizeof(b));
      const float result = step.op == "add" ? a + b : a * b;
      std::memcpy(at[0], &result, sizeof(result));
    };
    for_each(out.shape, 0, values, at, size, apply);
  }

  template <typename Apply>
  static void for_each(const std::vector<int64_t>& shape, size_t dim, const std::array<const Value*, 3>& values,
                       std::array<std::byte*, 3>& at, size_t size, const Apply& apply) {
    if (dim == shape.size()) return apply();
    const std::array<std::byte*, 3> start = at;
    for (int64_t i = 0; i < shape[dim]; ++i) {
      for (size_t k = 0; k < 3; ++k) {
        at[k] = start[k] + static_cast<uint64_t>(i) * static_cast<uint64_t>(values[k]->strides[dim]) * size;
      }
      for_each(shape, dim + 1, values, at, size, apply);
    }
    at = start;
  }

  const Program& program_;
  const std::span<std::byte> arena_;
  std::vector<std::unique_ptr<Collective>> collectives_;  // one for each step, null for another kind of step
};

}  // namespace

std::unique_ptr<PreparedProgram> PreparedProgram::prepare(const Program& program, std::span<std::byte> arena,
                                                          const std::shared_ptr<World>& world) {
  return std::make_unique<PortableProgram>(program, arena, world);
}

std::vector<std::string> kernel_names() {
  return {"add",  "all_gather", "all_reduce",    "all_to_all", "collective_broadcast",
          "copy", "multiply",   "reduce_scatter"};
}

}  // namespace nxl::host
