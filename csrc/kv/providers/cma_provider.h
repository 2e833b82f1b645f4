// SPDX-License-Identifier: Apache-2.0
// `cma`: process_vm_readv (cross-memory attach) of memory that has no descriptor of its own. Same host, same user.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/api.h"
#include "kv/provider.h"

namespace nxl::kv {

// The kernel decides who may attach: same user and, with Yama's ptrace_scope 1 or more, CAP_SYS_PTRACE. open() probes.
std::unique_ptr<Provider> make_cma_provider(ProviderHost& host);

// Clock ticks after boot at which the process started: with the pid it names one process for ever.
NXL_API std::optional<uint64_t> process_start_time(pid_t pid);

}  // namespace nxl::kv
