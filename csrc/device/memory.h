// SPDX-License-Identifier: Apache-2.0
// What the rest of the torch half may ask about device memory: addresses, NRT handles, and when a host may touch it.
// Everything here is thread safe and never takes the GIL. Errors leave as c10 exceptions (device/error_edge.h).
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "core/api.h"
#include "nrt_abi.h"

namespace nxl::device {

class NeuronAllocator;
// The one allocator of the process; it is never destroyed, so tensors may outlive main() and Runtime::close().
NXL_API NeuronAllocator& allocator();

// The NRT tensor that is exactly the bytes [storage_offset, storage_offset + numel) * itemsize of a contiguous neuron
// tensor. Valid while the tensor's storage lives and until the executions queued meanwhile are done. Repeated calls
// for the same window make no NRT call. nullptr for a tensor of zero bytes. Throws for a tensor that is not on neuron,
// is not contiguous, or whose storage did not come from our allocator (names which).
NXL_API nrt_tensor_t* tensor_handle(const at::TensorBase& tensor);

// Where an address lies: the segment's own NRT tensor and the offset in it, for copies that need no handle of their
// own.
struct Location {
  nrt_tensor_t* segment = nullptr;  // nullptr: the address is not ours
  uint64_t offset = 0;              // bytes
  uint64_t bytes_after = 0;         // bytes from the address to the end of the segment
  c10::DeviceIndex device = -1;
};
NXL_API Location locate(const void* data_ptr) noexcept;

// An address that this process may read and write: on the host runtime the same one, on a chip nullptr. Call
// wait_for_host_access first. nullptr for a foreign address.
void* host_address(const void* data_ptr) noexcept;
void* host_address(const at::TensorBase& tensor) noexcept;  // of the first element (storage_offset applied)

// True when device memory can be read and written in place (host runtime). Initialises the runtime.
NXL_API bool host_visible(c10::DeviceIndex device);

// Waits until the core has nothing in flight, then throws the first execution error since the last such call. One load
// and no lock when the core is idle. Every read or write of device memory by the host is preceded by it: see the note
// "Reuse without waiting" in device/allocator.h.
NXL_API void wait_for_host_access(c10::DeviceIndex device);

// The thread's current device, and the number of visible cores (does not initialise the runtime).
NXL_API c10::DeviceIndex current_device() noexcept;
NXL_API c10::DeviceIndex device_count();
// `device` itself, or the current one for -1; throws for an index outside the visible cores.
NXL_API c10::DeviceIndex resolve_device(c10::DeviceIndex device);

}  // namespace nxl::device
