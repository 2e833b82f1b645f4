// SPDX-License-Identifier: Apache-2.0
// Which element types the device itself works with.
#pragma once

#include <c10/core/DeviceCapability.h>

namespace nxl::device {

// What a compiled graph may hold: no float64, uint16, uint32, uint64, complex or quantised types. Tensors of those
// types may still be made on the device; operators on them run on the CPU.
c10::DeviceCapability device_capability();

}  // namespace nxl::device
