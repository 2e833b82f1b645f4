// SPDX-License-Identifier: Apache-2.0
// The device guard: how PyTorch switches devices and streams and handles events. Registered when the library loads.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/capability.h"
#include "device/context.h"
#include "device/error_edge.h"
#include "device/event.h"
#include "device/memory.h"
#include "device/stream.h"

namespace nxl::device {
namespace {

struct NeuronGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }

  // Entering a device guard.
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kDeviceType, get_current_device()}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK_VALUE(device.type() == kDeviceType, "expected a neuron device, got ", device);
    if (device.has_index()) at_torch_edge([&] { set_current_device(device.index()); });
  }
  // Leaving a device guard, from its destructor.
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_current_device_unchecked(device.index());
  }
  // torch.accelerator and the autograd engine; an unusable runtime counts as no device.
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return visible_devices();
    } catch (...) {
      return 0;
    }
  }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override { return device_capability(); }

  // Streams.
  c10::Stream getStream(c10::Device device) const override { return current_stream(resolve_device(device.index())); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(resolve_device(device.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return pooled_stream(resolve_device(device.index()), high_priority);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(resolve_device(device.index()), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return at_torch_edge([&] { return exchange_current_stream(stream); });
  }
  // torch.Stream.native_handle: the core's queue, which all streams of the device share.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return at_torch_edge([&]() -> void* {
      runtime();
      return &loader::CoreQueue::of(stream.device_index());
    });
  }
  bool queryStream(const c10::Stream& stream) const override { return stream_is_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override {
    at_torch_edge([&] { synchronize(stream.device_index()); });
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    at_torch_edge([&] { synchronize(resolve_device(device)); });
  }

  // Events. The void* is an Event, made by the first record.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK_VALUE(device == -1 || device == stream.device_index(), "an event of neuron:", static_cast<int>(device),
                      " cannot be recorded on a stream of ", stream.device());
    if (*event == nullptr) *event = new Event();
    at_torch_edge(
        [&] { static_cast<Event*>(*event)->record(stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT); });
  }
  // A stream of the event's own device is behind it already; see the note "Streams".
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto* recorded = static_cast<const Event*>(event);
    if (recorded->device() != stream.device_index()) at_torch_edge([&] { recorded->synchronize(); });
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<const Event*>(event)->is_complete();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) at_torch_edge([&] { static_cast<const Event*>(event)->synchronize(); });
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex device) const override {
    TORCH_CHECK_VALUE(start != nullptr && end != nullptr, "elapsed_time needs two recorded events");
    return at_torch_edge(
        [&] { return static_cast<const Event*>(start)->milliseconds_until(*static_cast<const Event*>(end)); });
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    delete static_cast<Event*>(event);
  }

  // Tensor.record_stream; see the note "Reuse without waiting".
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    TORCH_CHECK_VALUE(stream.device_type() == kDeviceType, "expected a neuron stream, got one of ", stream.device());
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard)

}  // namespace
}  // namespace nxl::device
