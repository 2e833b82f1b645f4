// SPDX-License-Identifier: Apache-2.0
// Binding of named tensors to a signature.
#include "host/tensor_sets.h"

#include <algorithm>

#include "host/refusal.h"

namespace nxl::host {
namespace {

bool still_valid(const Binding& binding, uint64_t model_id) {
  return binding.model_id == model_id &&
         std::all_of(binding.entries.begin(), binding.entries.end(),
                     [](const Binding::Entry& entry) { return entry.tensor->version() == entry.version; });
}

}  // namespace

const Binding::Range* Binding::overlapping(const std::byte* begin, const std::byte* end) const {
  const auto after = std::lower_bound(sorted.begin(), sorted.end(), end,
                                      [](const Range& range, const std::byte* at) { return range.begin < at; });
  if (after == sorted.begin()) return nullptr;
  const Range& last = sorted[std::prev(after)->reach];
  return last.end > begin ? &last : nullptr;
}

void TensorSet::add(std::string_view name, void* handle, std::shared_ptr<Tensor> tensor) {
  std::lock_guard lock(mutex_);
  cached_.reset();
  members_.insert_or_assign(std::string(name), Member{handle, std::move(tensor)});
}

void* TensorSet::find(std::string_view name) const {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(name);
  return found == members_.end() ? nullptr : found->second.handle;
}

std::shared_ptr<const Binding> TensorSet::bind(uint64_t model_id, const std::vector<neff::Variable>& variables,
                                               int core, const char* usage) {
  std::lock_guard lock(mutex_);
  if (cached_ && still_valid(*cached_, model_id)) return cached_;
  auto binding = std::make_shared<Binding>();
  binding->model_id = model_id;
  binding->entries.reserve(variables.size());
  binding->addresses.reserve(variables.size());
  for (const neff::Variable& variable : variables) {
    const auto found = members_.find(variable.name);
    if (found == members_.end()) refuse(NRT_INVALID, "the ", usage, " set has no tensor named '", variable.name, "'");
    const auto& [handle, tensor] = found->second;
    const uint32_t version = tensor->version();
    if (tensor->freed()) {
      refuse(NRT_INVALID, usage, " '", variable.name, "': the tensor was freed; it must outlive the set");
    }
    const View view = tensor->whole();
    if (view.bytes != variable.bytes) {
      refuse(NRT_INVALID, usage, " '", variable.name, "': the tensor has ", view.bytes, " bytes, the model takes ",
             variable.bytes);
    }
    if (view.storage->core >= 0 && view.storage->core != core) {
      refuse(NRT_INVALID, usage, " '", variable.name, "': the tensor is on core ", view.storage->core,
             ", the model on core ", core);
    }
    if (view.bytes != 0) {
      binding->sorted.push_back(
          {view.address, view.address + view.bytes, static_cast<uint32_t>(binding->entries.size())});
    }
    binding->entries.push_back({handle, tensor, version, view.storage});
    binding->addresses.push_back(view.address);
  }
  if (members_.size() > variables.size()) {
    for (const auto& [name, member] : members_) {
      const auto known = std::any_of(variables.begin(), variables.end(),
                                     [&, &name = name](const neff::Variable& v) { return v.name == name; });
      if (!known) refuse(NRT_INVALID, "the model has no ", usage, " named '", name, "'");
    }
  }
  std::sort(binding->sorted.begin(), binding->sorted.end(),
            [](const Binding::Range& a, const Binding::Range& b) { return a.begin < b.begin; });
  for (uint32_t i = 0; i < binding->sorted.size(); ++i) {
    const uint32_t before = i == 0 ? 0 : binding->sorted[i - 1].reach;
    binding->sorted[i].reach = binding->sorted[before].end > binding->sorted[i].end ? before : i;
  }
  cached_ = binding;
  return binding;
}

}  // namespace nxl::host
