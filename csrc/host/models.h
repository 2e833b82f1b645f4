// SPDX-License-Identifier: Apache-2.0
// A loaded model: its program, the memory it owns on its core, and one execution of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "host/cores.h"
#include "host/kernels/prepared_program.h"
#include "host/memory.h"
#include "host/program.h"
#include "host/queue.h"
#include "host/tensor_sets.h"

namespace nxl::host {

// One of the ranks that execute a NEFF with collectives together.
struct Place {
  uint32_t rank = 0;
  uint32_t count = 1;
};

class Model {
 public:
  // Throws for a broken NEFF, one for another target, an operation without a kernel, or no room on the core. The bytes
  // are not needed afterwards. `place` is the caller's among the ranks of its collectives, which connect at the first
  // execution.
  Model(std::span<const std::byte> neff, std::shared_ptr<Core> core, std::optional<Place> place = std::nullopt);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  uint64_t id() const { return id_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<Core>& core() const { return core_; }
  const Program& program() const { return program_; }
  bool is_small() const { return small_; }
  PreparedProgram& prepared() { return *prepared_; }

 private:
  const uint64_t id_;  // never reused, unlike an address
  const std::shared_ptr<Core> core_;
  std::string name_;
  Program program_;
  std::shared_ptr<Reservation> constants_;
  std::shared_ptr<Allocation> arena_;
  std::unique_ptr<PreparedProgram> prepared_;
  bool small_ = false;
};

// `count` runs of a model, one after the other, on bindings taken now. Throws INVALID as TensorSet::bind does, and when
// an aliased output is not its input's memory or another output shares memory with an input or an output.
std::unique_ptr<Work> make_execution(std::shared_ptr<Model> model, TensorSet& inputs, TensorSet& outputs, int count);

}  // namespace nxl::host
