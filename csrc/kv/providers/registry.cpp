// SPDX-License-Identifier: Apache-2.0
// Providers by name.
#include "core/error.h"
#include "kv/provider.h"
#include "kv/providers/cma_provider.h"
#include "kv/providers/loopback_provider.h"
#include "kv/providers/shm_provider.h"
#include "kv/providers/tcp_provider.h"

namespace nxl::kv {

std::unique_ptr<Provider> make_provider(const std::string& name, ProviderHost& host) {
  if (name == "loopback") return make_loopback_provider(host);
  if (name == "shm") return make_shm_provider(host);
  if (name == "cma") return make_cma_provider(host);
  if (name == "tcp") return make_tcp_provider(host);
  throw_error(ErrorKind::kInvalid,
              detail::concat("providers: '", name, "' is not a provider; there are loopback, shm, cma and tcp"));
}

}  // namespace nxl::kv
