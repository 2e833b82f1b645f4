// SPDX-License-Identifier: Apache-2.0
// `loopback`: two agents of one process copy from each other's memory directly.
#pragma once

#include <memory>

#include "kv/provider.h"

namespace nxl::kv {

// The peer agent's regions are held while a read uses them, so that their deregister is BUSY meanwhile.
std::unique_ptr<Provider> make_loopback_provider(ProviderHost& host);

}  // namespace nxl::kv
