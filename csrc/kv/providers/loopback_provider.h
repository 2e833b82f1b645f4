// SPDX-License-Identifier: Apache-2.0
// `loopback`: two agents of one process copy from each other's memory directly.
#pragma once

#include <memory>

#include "kv/provider.h"

namespace nxl::kv {

// Memory is the peer agent's: a region's object is held while a read uses it, so the owner's deregister must answer
// BUSY while anyone but its table holds the region.
std::unique_ptr<Provider> make_loopback_provider(ProviderHost& host);

}  // namespace nxl::kv
