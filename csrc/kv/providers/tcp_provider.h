// SPDX-License-Identifier: Apache-2.0
// `tcp`: bytes over data connections of their own, beside the control connection. Both ends serve and read.
#pragma once

#include <memory>

#include "kv/provider.h"

namespace nxl::kv {

// Listens on the host's bind address at the first advertise(). Data connections are made at the first read and prove
// the session's secret both ways. Throws nothing; a listener that cannot be opened leaves the advertisement empty.
std::unique_ptr<Provider> make_tcp_provider(ProviderHost& host);

}  // namespace nxl::kv
