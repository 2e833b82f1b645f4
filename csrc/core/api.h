// SPDX-License-Identifier: Apache-2.0
// Marks what libnxl_runtime.so exports; everything else is hidden.
#pragma once

#define NXL_API __attribute__((visibility("default")))
