// SPDX-License-Identifier: Apache-2.0
// The symbol that _C calls so that the linker keeps this library, whose work is done by static registration.
#pragma once

namespace nxl::ops {

// Does nothing: registration happened when the library was loaded. No driver call and no logging happen then.
__attribute__((visibility("default"))) void ensure_linked();

}  // namespace nxl::ops
