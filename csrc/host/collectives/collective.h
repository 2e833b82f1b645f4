// SPDX-License-Identifier: Apache-2.0
// One collective step of a program, on the memory of this rank (docs/host-program.md, docs/parallel.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "host/collectives/reduction.h"
#include "host/collectives/world.h"
#include "host/program.h"

namespace nxl::host {

bool is_collective(std::string_view op);
std::span<const char* const> collective_names();
// How many ranks the program's collectives join; 0 without collectives. Throws Error(kInvalid) when steps differ in it.
uint32_t replicas_of(const Program& program);

class Collective {
 public:
  // Checks the step against the world. Throws Error(kInvalid) naming step and reason.
  Collective(const Program& program, size_t step_number, std::shared_ptr<World> world);

  // Blocks until all members of the group have done their part. `in` and `out` are dense and do not overlap. Throws
  // Error(EXEC_HW_ERR_COLLECTIVES) naming the rank that is missing.
  void run(const std::byte* in, std::byte* out);

 private:
  void all_reduce(Group& group, const std::byte* in, std::byte* out) const;
  void all_reduce_directly(Group& group, const std::byte* in, std::byte* out, size_t elements) const;
  void all_gather(Group& group, const std::byte* in, std::byte* out) const;
  void reduce_scatter(Group& group, const std::byte* in, std::byte* out) const;
  void all_to_all(Group& group, const std::byte* in, std::byte* out) const;
  void broadcast(Group& group, const std::byte* in, std::byte* out) const;

  std::shared_ptr<World> world_;
  std::shared_ptr<Group> group_;  // from the first run on
  std::vector<uint32_t> members_;
  Signature signature_;
  Reduction reduction_ = nullptr;
  int root_ = -1;  // collective_broadcast: index in members_
  size_t element_bytes_ = 0;
  size_t in_elements_ = 0;
  size_t out_elements_ = 0;
};

// Blocks until every rank of the world is here.
void wait_for_all(World& world);

}  // namespace nxl::host
