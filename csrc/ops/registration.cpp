// SPDX-License-Identifier: Apache-2.0
// The anchor symbol of this library.
#include "ops/registration.h"

namespace nxl::ops {

void ensure_linked() {}

}  // namespace nxl::ops
