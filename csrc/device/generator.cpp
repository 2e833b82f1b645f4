// SPDX-License-Identifier: Apache-2.0
// NeuronGenerator, and the default one of each device.
#include "device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <cstring>
#include <mutex>
#include <optional>

#include "device/context.h"
#include "device/error_edge.h"
#include "device/memory.h"

namespace nxl::device {
namespace {

constexpr int64_t kHeaderBytes = 2 * sizeof(uint64_t);  // seed, offset
constexpr uint64_t kPhiloxWidth = 4;

struct Defaults {
  std::mutex mutex;
  std::optional<uint64_t> seed;  // what generators that are not made yet will be seeded with
  std::array<at::Generator, kMaxDevices> generators;
};

Defaults& defaults() {
  static Defaults* const instance = new Defaults();  // leaked: Python may hold generators until the very end
  return *instance;
}

}  // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(kDeviceType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      cpu_(at::detail::createCPUGenerator()) {}

std::pair<uint64_t, uint64_t> NeuronGenerator::reserve_philox(uint64_t increment) {
  const std::lock_guard lock(mutex_);
  const uint64_t offset = offset_;
  offset_ += (increment + kPhiloxWidth - 1) / kPhiloxWidth * kPhiloxWidth;
  return {seed_, offset};
}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
  const std::lock_guard lock(cpu_.mutex());
  cpu_.set_current_seed(seed);
}

// The offset belongs to the Philox stream; the CPU stream has none that could be set.
void NeuronGenerator::set_offset(uint64_t offset) { offset_ = offset; }
uint64_t NeuronGenerator::get_offset() const { return offset_; }
uint64_t NeuronGenerator::current_seed() const { return seed_; }

uint64_t NeuronGenerator::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom();
  set_current_seed(random);
  return random;
}

void NeuronGenerator::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  const auto cpu_bytes = static_cast<int64_t>(cpu_.get_state().nbytes());
  TORCH_CHECK_VALUE(new_state.numel() == kHeaderBytes + cpu_bytes, "a neuron generator's state has ",
                    kHeaderBytes + cpu_bytes, " bytes, got ", new_state.numel(),
                    "; a state of the CPU generator cannot be used for the device");
  const auto* bytes = static_cast<const uint8_t*>(new_state.data());
  at::Tensor cpu_state = at::empty({cpu_bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  std::memcpy(cpu_state.mutable_data_ptr(), bytes + kHeaderBytes, static_cast<size_t>(cpu_bytes));
  {
    const std::lock_guard lock(cpu_.mutex());
    cpu_.set_state(cpu_state);
  }
  std::memcpy(&seed_, bytes, sizeof(seed_));
  std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  const at::Tensor cpu_state = cpu_.get_state();
  const auto cpu_bytes = static_cast<int64_t>(cpu_state.nbytes());
  at::Tensor state = at::empty({kHeaderBytes + cpu_bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, sizeof(seed_));
  std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
  std::memcpy(bytes + kHeaderBytes, cpu_state.const_data_ptr(), static_cast<size_t>(cpu_bytes));
  return state.getIntrusivePtr();
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device_.index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  copy->cpu_ = cpu_.clone();
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  device = resolve_device(device);
  Defaults& all = defaults();
  const std::lock_guard lock(all.mutex);
  at::Generator& generator = all.generators[device];
  if (!generator.defined()) {
    generator = at::make_generator<NeuronGenerator>(device);
    if (all.seed.has_value()) {
      generator.set_current_seed(*all.seed);
    } else {
      generator.seed();
    }
  }
  return generator;
}

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<NeuronGenerator>(resolve_device(device));
}

void seed_default_generators(uint64_t seed) {
  Defaults& all = defaults();
  const std::lock_guard lock(all.mutex);
  all.seed = seed;
  for (at::Generator& generator : all.generators) {
    if (!generator.defined()) continue;
    const std::lock_guard generator_lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

at::Generator cpu_generator_for(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  if (generator.has_value() && generator->defined() && generator->device().is_cpu()) return *generator;
  const at::Generator& chosen = generator.has_value() && generator->defined() ? *generator : default_generator(device);
  return at::check_generator<NeuronGenerator>(chosen)->cpu_generator();
}

}  // namespace nxl::device
