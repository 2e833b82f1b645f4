// SPDX-License-Identifier: Apache-2.0
// The process's view of the devices: the runtime behind them, the thread's current device, waiting, and fork.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "core/api.h"
#include "loader/core_queue.h"
#include "nrt/runtime.h"

namespace nxl::device {

// Device indices are int8_t in c10; per-device tables have this many places.
inline constexpr int kMaxDevices = 128;
inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// The open runtime, made by the first call. Throws nxl::Error: kUnavailable in a forked child of a process that had
// used the device (threads and device handles do not survive a fork), kClosed after Runtime::close().
NXL_API std::shared_ptr<nrt::Runtime> runtime();
// The runtime when some call has made it and it is still open; makes nothing.
NXL_API bool runtime_is_open() noexcept;
// True in a child forked after the parent had used the device.
NXL_API bool in_bad_fork() noexcept;

// The thread's current device. set_ checks the index against the visible cores and throws nxl::Error(kInvalid).
NXL_API c10::DeviceIndex get_current_device() noexcept;
NXL_API void set_current_device(c10::DeviceIndex device);
void set_current_device_unchecked(c10::DeviceIndex device) noexcept;

// The number of visible cores: asked of the runtime once it is initialised, else counted without initialising it, so
// that NEURON_RT_* may still be set between import and first use.
c10::DeviceIndex visible_devices();
// Throws nxl::Error(kInvalid) that names the valid range and the variables that set it.
void check_device(c10::DeviceIndex device);

// The queue of a device, or nullptr when nothing was ever queued there.
loader::CoreQueue* queue_if_used(c10::DeviceIndex device) noexcept;
// True when nothing is in flight on the device.
bool is_idle(c10::DeviceIndex device) noexcept;
// Waits for everything that was queued before the call; throws a time-out, then the first execution error.
NXL_API void synchronize(c10::DeviceIndex device);
// Waits for one ticket and all before it, with the deadline of NEURON_LIBTORCH_EXECUTION_TIMEOUT; same errors.
void synchronize(c10::DeviceIndex device, uint64_t ticket);

}  // namespace nxl::device
