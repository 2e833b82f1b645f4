// SPDX-License-Identifier: Apache-2.0
// The random number generator of a neuron device: one seed, two streams (see the note "Two streams").
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "core/api.h"

namespace nxl::device {

// Note "Two streams". An eager random op runs on the CPU and draws from cpu_generator(), which is seeded with the same
// seed as the device, so torch.manual_seed(s) gives the values that CPU eager gives. A compiled graph draws a Philox
// {seed, offset} pair instead; reserving one moves the offset, so two calls never share numbers and a restored state
// repeats them. The state holds both.
class NXL_API NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex device);

  // Where eager fallback draws; lock mutex() of the returned generator as for any CPU generator.
  at::Generator cpu_generator() const { return cpu_; }
  // The pair for one run of a compiled graph; moves the offset by `increment` (rounded up to 4, Philox's width).
  std::pair<uint64_t, uint64_t> reserve_philox(uint64_t increment);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  // One uint8 tensor: seed, offset (8 bytes each, native order), then the CPU generator's state.
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

 private:
  NeuronGenerator* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
  at::Generator cpu_;
};

// The default generator of a device, made on first use. Throws for an index outside the visible cores.
NXL_API const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator make_generator(c10::DeviceIndex device);
// torch.manual_seed: seeds the default generators, those not made yet as well. Needs no runtime.
NXL_API void seed_default_generators(uint64_t seed);

// The CPU generator behind `generator`: the device's default for nullopt, the generator itself when it is a CPU one.
at::Generator cpu_generator_for(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

}  // namespace nxl::device
