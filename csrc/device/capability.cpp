// SPDX-License-Identifier: Apache-2.0
// The list behind torch.accelerator.get_device_capability.
#include "device/capability.h"

namespace nxl::device {

c10::DeviceCapability device_capability() {
  c10::DeviceCapability capability;
  capability.capability_data.capability_bits = 0;
  auto& types = capability.capability_data.supported_scalar_types;
  types.has_Bool = 1;
  types.has_Byte = 1;
  types.has_Char = 1;
  types.has_Short = 1;
  types.has_Int = 1;
  types.has_Long = 1;
  types.has_Half = 1;
  types.has_BFloat16 = 1;
  types.has_Float = 1;
  types.has_Float8_e4m3fn = 1;
  types.has_Float8_e5m2 = 1;
  return capability;
}

}  // namespace nxl::device
