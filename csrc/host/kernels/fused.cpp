// SPDX-License-Identifier: Apache-2.0
// fused: a chain of elementwise operations and reductions over rows, run row by row while the row is in the first-level
// cache. Every operation rounds to its own type, as the separate steps would.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "host/kernels/dtype_map.h"
#include "host/kernels/registry.h"
#include "host/kernels/row_kernels.h"
#include "host/kernels/strided.h"
#include "host/kernels/team.h"

namespace nxl::host {

namespace {

// Elements of a tile: several registers of this size stay in the first-level cache.
constexpr int64_t kTile = 1024;
// Element operations a thread should have before a second one is worth waking.
constexpr int64_t kWorkGrain = 65536;
constexpr size_t kMaxInstructions = 4096;

using Floats = Types<c10::BFloat16, c10::Half, float>;

constexpr std::pair<std::string_view, RowUnary> kUnaries[] = {
    {"convert", RowUnary::kConvert},   {"negate", RowUnary::kNegate},
    {"abs", RowUnary::kAbs},           {"exponential", RowUnary::kExponential},
    {"logistic", RowUnary::kLogistic}, {"tanh", RowUnary::kTanh},
    {"erf", RowUnary::kErf},           {"sqrt", RowUnary::kSqrt},
    {"rsqrt", RowUnary::kRsqrt},
};
constexpr std::pair<std::string_view, RowBinary> kBinaries[] = {
    {"add", RowBinary::kAdd},       {"subtract", RowBinary::kSubtract}, {"multiply", RowBinary::kMultiply},
    {"divide", RowBinary::kDivide}, {"maximum", RowBinary::kMaximum},   {"minimum", RowBinary::kMinimum},
};

std::optional<size_t> row_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 0;
    case at::kHalf:
      return 1;
    case at::kFloat:
      return 2;
    default:
      return std::nullopt;
  }
}

// One value of the chain while a tile runs: a row, or one number that belongs to the whole row.
struct Register {
  size_t offset = 0;  // floats from the start of the scratch
  bool number = false;
};

struct Instruction {
  enum class Kind : uint8_t { kUnary, kBinary, kSum, kMaximum } kind;
  RowKernels::Unary unary = nullptr;
  RowKernels::Binary binary = nullptr;
  size_t type = 2;
  uint32_t a = 0, b = 0, to = 0;  // registers
};

// Elements in memory that a register is filled from or written to.
struct Transfer {
  Address at;
  std::vector<int64_t> strides;  // bytes, of the leading dimensions
  int64_t step = 0;              // bytes, along the row
  size_t type = 2;
  int64_t width = 4;
  uint32_t reg = 0;
  bool one = false;  // an output of one element a row
};

// One thread's memory and its place in the operands.
struct Slot {
  std::vector<float> scratch;
  std::vector<int64_t> index;  // of the row, in the leading dimensions
  std::vector<char*> at;       // where the row begins, of inputs, then outputs
};

class Fused {
 public:
  Fused(const StepContext& step, const RowKernels& kernels) : kernels_(kernels) {
    step.require(step.output(0).dim() > 0, "rows are the last dimension; output 0 is a scalar");
    shape_ = step.output(0).sizes().vec();
    shape_.pop_back();
    // An operand with one number a row has one element there, the others have the row.
    const auto widen_to = [&](const at::Tensor& tensor) {
      if (tensor.dim() > 0 && (row_ < 0 || row_ == 1)) row_ = tensor.size(tensor.dim() - 1);
    };
    for (size_t i = 0; i < step.num_inputs(); ++i) widen_to(step.input(i));
    for (size_t i = 0; i < step.num_outputs(); ++i) widen_to(step.output(i));
    for (int64_t size : shape_) rows_ *= size;
    read_program(step);
    for (size_t i = 0; i < step.num_outputs(); ++i) add_output(step, i);
    const bool reduces = std::any_of(instructions_.begin(), instructions_.end(), [](const Instruction& instruction) {
      return instruction.kind == Instruction::Kind::kSum || instruction.kind == Instruction::Kind::kMaximum;
    });
    tile_ = reduces ? row_ : std::min(row_, kTile);
    place_registers();
  }

  void run() {
    const int64_t per_row = (row_ + tile_ - 1) / tile_, total = rows_ * per_row;
    const int64_t work = rows_ * row_ * static_cast<int64_t>(instructions_.size());
    const int64_t threads = std::max<int64_t>(1, std::min({int64_t{at::get_num_threads()}, total, work / kWorkGrain}));
    while (static_cast<int64_t>(slots_.size()) < threads) slots_.push_back(make_slot());
    // A few shares a thread, so that one that starts late leaves its own to the others.
    const int64_t share = std::max<int64_t>(1, total / (threads * 4));
    std::atomic<int64_t> next{0};
    // One piece a thread, for the slot.
    const auto piece = [&](int64_t begin, int64_t end) noexcept {
      for (int64_t slot = begin; slot < end; ++slot) {
        for (int64_t first; (first = next.fetch_add(share, std::memory_order_relaxed)) < total;) {
          run_tiles(first, std::min(first + share, total), per_row, slots_[static_cast<size_t>(slot)]);
        }
      }
    };
    Team::of_this_thread().share(static_cast<int>(threads), threads, 1, piece);
  }

 private:
  // attrs: {"program": [[op, dtype, operand, ...], ...], "results": [value, ...]}. Values 0, 1, ... are the inputs,
  // then the results of the program's operations in order.
  void read_program(const StepContext& step) {
    for (size_t i = 0; i < step.num_inputs(); ++i) add_input(step, i);
    const Json* program = step.find("program");
    step.require(program != nullptr, "attribute `program` is absent");
    const Json::Array& list = program->as_array("program");
    step.require(!list.empty() && list.size() <= kMaxInstructions, "attribute `program` has ", list.size(),
                 " operations; it may have 1 to ", kMaxInstructions);
    for (size_t i = 0; i < list.size(); ++i) add_instruction(step, list[i].as_array("program"), i);
  }

  void add_input(const StepContext& step, size_t i) {
    const at::Tensor& x = step.input(i);
    const std::string what = nxl::detail::concat("input ", i);
    std::vector<int64_t> expected = shape_;
    const bool number = x.dim() > 0 && x.size(x.dim() - 1) == 1 && row_ != 1;
    expected.push_back(number ? 1 : row_);
    step.expect_shape(x, expected, what);
    // A row that repeats one element is a number too.
    const bool repeats = number || x.stride(x.dim() - 1) == 0 || row_ == 1;
    registers_.push_back({0, repeats});
    inputs_.push_back(transfer(step, x, what, static_cast<uint32_t>(i)));
  }

  void add_output(const StepContext& step, size_t i) {
    const std::vector<int64_t> results = step.integers("results");
    step.require(results.size() == step.num_outputs(), "attribute `results` has ", results.size(),
                 " entries; the step ", "has ", step.num_outputs(), " outputs");
    const int64_t value = results[i];
    step.require(value >= static_cast<int64_t>(step.num_inputs()) && value < static_cast<int64_t>(registers_.size()),
                 "result ", i, " is value ", value, "; the operations make values ", step.num_inputs(), " to ",
                 registers_.size() - 1);
    const at::Tensor& y = step.output(i);
    const std::string what = nxl::detail::concat("output ", i);
    std::vector<int64_t> expected = shape_;
    const bool number = registers_[static_cast<size_t>(value)].number && y.dim() > 0 && y.size(y.dim() - 1) == 1;
    expected.push_back(number ? 1 : row_);
    step.expect_shape(y, expected, what);
    outputs_.push_back(transfer(step, y, what, static_cast<uint32_t>(value)));
    outputs_.back().one = number;
    const size_t type = instructions_[static_cast<size_t>(value) - step.num_inputs()].type;
    step.require(outputs_.back().type == type, what, " has another dtype than the operation that makes it");
  }

  static Transfer transfer(const StepContext& step, const at::Tensor& tensor, const std::string& what, uint32_t reg) {
    const auto type = row_type(tensor.scalar_type());
    if (!type) {
      step.unsupported(nxl::detail::concat(what, " has dtype ", c10::toString(tensor.scalar_type()),
                                           "; the op takes bf16, f16 and f32"));
    }
    Transfer made;
    made.at = Address(tensor);
    made.strides = byte_strides(tensor);
    made.step = made.strides.back();
    made.strides.pop_back();
    made.type = *type;
    made.width = static_cast<int64_t>(tensor.element_size());
    made.reg = reg;
    return made;
  }

  void add_instruction(const StepContext& step, const Json::Array& words, size_t position) {
    const std::string what = nxl::detail::concat("operation ", position);
    step.require(words.size() >= 3 && words.size() <= 4, what, " has ", words.size(), " words; it has 3 or 4");
    const std::string& name = words[0].as_string(what);
    const std::string& dtype = words[1].as_string(what);
    const auto known = dtype_from_name(dtype);
    const auto type = known ? row_type(scalar_type(*known)) : std::nullopt;
    step.require(type.has_value(), what, " has dtype `", dtype, "`; the op knows bf16, f16 and f32");
    const auto operand = [&](size_t word) {
      const uint64_t value = words[word].as_size(what);
      step.require(value < registers_.size(), what, " reads value ", value, ", which is not there yet");
      return static_cast<uint32_t>(value);
    };
    Instruction made{Instruction::Kind::kUnary};
    made.type = *type;
    made.a = operand(2);
    made.to = static_cast<uint32_t>(registers_.size());
    bool number = registers_[made.a].number;
    if (words.size() == 4) {
      made.b = operand(3);
      number = number && registers_[made.b].number;
      const auto found = std::find_if(std::begin(kBinaries), std::end(kBinaries),
                                      [&](const auto& entry) { return entry.first == name; });
      if (found == std::end(kBinaries))
        step.unsupported(nxl::detail::concat(what, ": no operation `", name, "` of two"));
      const RowForm form = registers_[made.a].number == registers_[made.b].number ? RowForm::kRows
                           : registers_[made.b].number                            ? RowForm::kRightNumber
                                                                                  : RowForm::kLeftNumber;
      made.kind = Instruction::Kind::kBinary;
      made.binary = kernels_.binary[static_cast<size_t>(found->second)][static_cast<size_t>(form)][made.type];
    } else if (name == "sum" || name == "max") {
      made.kind = name == "sum" ? Instruction::Kind::kSum : Instruction::Kind::kMaximum;
      number = true;
    } else {
      const auto found = std::find_if(std::begin(kUnaries), std::end(kUnaries),
                                      [&](const auto& entry) { return entry.first == name; });
      if (found == std::end(kUnaries))
        step.unsupported(nxl::detail::concat(what, ": no operation `", name, "` of one"));
      made.unary = kernels_.unary[static_cast<size_t>(found->second)][made.type];
    }
    registers_.push_back({0, number});
    instructions_.push_back(made);
  }

  // A register's place is free again after its last reader; results live to the end.
  void place_registers() {
    const auto rows = static_cast<size_t>((tile_ + kRowPad - 1) / kRowPad * kRowPad);
    std::vector<size_t> last(registers_.size(), 0);
    for (size_t i = 0; i < instructions_.size(); ++i) {
      last[instructions_[i].a] = i;
      if (instructions_[i].kind == Instruction::Kind::kBinary) last[instructions_[i].b] = i;
    }
    for (const Transfer& output : outputs_) last[output.reg] = instructions_.size();
    std::vector<size_t> free_rows, free_numbers;
    const auto take = [&](bool number) {
      std::vector<size_t>& free = number ? free_numbers : free_rows;
      if (!free.empty()) {
        const size_t offset = free.back();
        free.pop_back();
        return offset;
      }
      const size_t offset = scratch_floats_;
      scratch_floats_ += number ? static_cast<size_t>(kRowPad) : rows;
      return offset;
    };
    for (const Transfer& input : inputs_) registers_[input.reg].offset = take(registers_[input.reg].number);
    for (size_t i = 0; i < instructions_.size(); ++i) {
      const Instruction& instruction = instructions_[i];
      // Operands that die here first: a result may be written over them.
      const auto release = [&](uint32_t reg) {
        if (last[reg] == i) (registers_[reg].number ? free_numbers : free_rows).push_back(registers_[reg].offset);
      };
      release(instruction.a);
      if (instruction.kind == Instruction::Kind::kBinary && instruction.b != instruction.a) release(instruction.b);
      registers_[instruction.to].offset = take(registers_[instruction.to].number);
    }
  }

  Slot make_slot() const {
    return {std::vector<float>(scratch_floats_), std::vector<int64_t>(shape_.size()),
            std::vector<char*>(inputs_.size() + outputs_.size())};
  }

  const Transfer& transfer_at(size_t i) const { return i < inputs_.size() ? inputs_[i] : outputs_[i - inputs_.size()]; }

  void run_tiles(int64_t first, int64_t last, int64_t per_row, Slot& slot) const {
    int64_t row = first / per_row, tile = first % per_row;
    for (size_t i = 0; i < slot.at.size(); ++i) slot.at[i] = transfer_at(i).at.get();
    for (size_t d = shape_.size(); d-- > 0;) {
      slot.index[d] = row % shape_[d];
      row /= shape_[d];
      for (size_t i = 0; i < slot.at.size(); ++i) slot.at[i] += slot.index[d] * transfer_at(i).strides[d];
    }
    for (int64_t t = first; t < last; ++t) {
      run_tile(tile * tile_, slot);
      if (++tile < per_row) continue;
      tile = 0;
      next_row(slot);
    }
  }

  void next_row(Slot& slot) const {
    for (size_t d = shape_.size(); d-- > 0;) {
      const bool wraps = ++slot.index[d] == shape_[d];
      const int64_t steps = wraps ? 1 - shape_[d] : 1;
      for (size_t i = 0; i < slot.at.size(); ++i) slot.at[i] += steps * transfer_at(i).strides[d];
      if (!wraps) return;
      slot.index[d] = 0;
    }
  }

  // Elements [first, first + tile) of the slot's row; the whole row when the program reduces.
  void run_tile(int64_t first, Slot& slot) const {
    const int64_t count = std::min(tile_, row_ - first);
    float* scratch = slot.scratch.data();
    for (size_t i = 0; i < inputs_.size(); ++i) {
      load(inputs_[i], slot.at[i] + first * inputs_[i].step, count, scratch);
    }
    for (const Instruction& instruction : instructions_) {
      const float* a = scratch + registers_[instruction.a].offset;
      const Register& to = registers_[instruction.to];
      float* y = scratch + to.offset;
      switch (instruction.kind) {
        case Instruction::Kind::kUnary:
          instruction.unary(y, a, to.number ? 1 : count);
          break;
        case Instruction::Kind::kBinary:
          instruction.binary(y, a, scratch + registers_[instruction.b].offset, to.number ? 1 : count);
          break;
        case Instruction::Kind::kSum:
        case Instruction::Kind::kMaximum: {
          const bool sums = instruction.kind == Instruction::Kind::kSum;
          if (registers_[instruction.a].number) {  // every element of the row is this one
            *y = sums ? *a * static_cast<float>(row_) : *a;
          } else {
            *y = sums ? kernels_.sum(a, count) : kernels_.maximum(a, count);
          }
          kernels_.unary[static_cast<size_t>(RowUnary::kConvert)][instruction.type](y, y, 1);
          break;
        }
      }
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      store(outputs_[i], slot.at[inputs_.size() + i] + first * outputs_[i].step, count, scratch);
    }
  }

  void load(const Transfer& input, const char* from, int64_t count, float* scratch) const {
    const Register& reg = registers_[input.reg];
    float* to = scratch + reg.offset;
    const auto widen = kernels_.widen[input.type];
    if (reg.number || input.step == input.width) return widen(to, from, reg.number ? 1 : count);
    for (int64_t i = 0; i < count; ++i) widen(to + i, from + i * input.step, 1);
  }

  void store(const Transfer& output, char* to, int64_t count, const float* scratch) const {
    const Register& reg = registers_[output.reg];
    const float* from = scratch + reg.offset;
    const auto narrow = kernels_.narrow[output.type];
    if (output.one) return narrow(to, from, 1);
    if (!reg.number && output.step == output.width) return narrow(to, from, count);
    for (int64_t i = 0; i < count; ++i) narrow(to + i * output.step, reg.number ? from : from + i, 1);
  }

  const RowKernels& kernels_;
  std::vector<int64_t> shape_;              // without the row
  int64_t row_ = -1, rows_ = 1, tile_ = 1;  // elements of a row, rows, elements of a tile
  std::vector<Register> registers_;
  std::vector<Instruction> instructions_;
  std::vector<Transfer> inputs_, outputs_;
  size_t scratch_floats_ = 0;
  std::vector<Slot> slots_;
};

Kernel prepare_fused(StepContext& step) {
  step.require(step.num_outputs() > 0, "has no output");
  auto fused = std::make_shared<Fused>(step, row_kernels());
  if (step.output(0).numel() == 0) return [] {};
  return [fused] { fused->run(); };
}

constexpr KernelEntry kKernels[] = {{"fused", prepare_fused}};

}  // namespace

std::span<const KernelEntry> fused_kernels() { return kKernels; }

}  // namespace nxl::host
