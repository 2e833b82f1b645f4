// SPDX-License-Identifier: Apache-2.0
// The hooks by which PyTorch's generic code asks about the device. Registered when the library loads.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>

#include <algorithm>

#include "device/allocator.h"
#include "device/context.h"
#include "device/error_edge.h"
#include "device/generator.h"
#include "device/memory.h"
#include "device/pinned_memory.h"

namespace nxl::device {
namespace {

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  // torch.accelerator.current_accelerator.
  bool isBuilt() const override { return true; }
  // torch.accelerator.is_available and the autograd engine. Must not throw and must not initialise the runtime.
  bool isAvailable() const override {
    try {
      return visible_devices() > 0;
    } catch (...) {
      return false;
    }
  }
  // The autograd engine, before it makes a device thread.
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return runtime_is_open(); }
  // at::globalContext().lazyInitDevice.
  void init() const override {
    at_torch_edge([] { runtime(); });
  }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    at_torch_edge([&] { set_current_device(device); });
  }
  c10::DeviceIndex getCurrentDevice() const override { return get_current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = get_current_device();
    setCurrentDevice(device);
    return before;
  }
  // The exit of torch.accelerator.device_index: -1 means that nothing is to be restored.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? get_current_device() : exchangeDevice(device);
  }

  // torch.Generator(device="neuron") and every random operator without a generator argument.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return make_generator(device); }

  // torch.utils.dlpack and from_blob with no device given.
  at::Device getDeviceFromPtr(void* data) const override {
    const Location location = locate(data);
    TORCH_CHECK_VALUE(location.segment != nullptr, "the address ", data, " is not neuron memory");
    return {kDeviceType, location.device};
  }

  // Tensor.is_pinned, Tensor.pin_memory, DataLoader(pin_memory=True).
  bool isPinnedPtr(const void* data) const override { return pinned_allocator().owns(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }

  // UntypedStorage.resize_: keeps the common bytes, zero-fills nothing, as on the CPU.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    NeuronAllocator& memory = allocator();
    c10::DataPtr fresh = memory.allocate_on(storage.device().index(), bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) memory.copy_data(fresh.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks());  // leaked: asked until the very end of the process
  return true;
}();

}  // namespace
}  // namespace nxl::device
