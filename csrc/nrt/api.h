// SPDX-License-Identifier: Apache-2.0
// The table of NRT entry points, filled by dlsym. Nothing outside csrc/nrt, csrc/loader and csrc/kv calls through it.
#pragma once

#include "nrt_abi.h"

namespace nxl::nrt {

// Rows by hand: clang-format indents each more than the one before, and not the same way when it is run again.
// clang-format off
// Entry points that every runtime must have. A missing one is an error that names it.
#define NXL_NRT_REQUIRED(X)                                                                            \
  X(nrt_init) X(nrt_close) X(nrt_get_version) X(nrt_get_instance_info) X(nrt_get_total_vnc_count)      \
  X(nrt_get_visible_vnc_count) X(nrt_get_status_as_str) X(nrt_load) X(nrt_unload)                      \
  X(nrt_get_model_tensor_info) X(nrt_free_model_tensor_info) X(nrt_allocate_tensor_set)                \
  X(nrt_destroy_tensor_set) X(nrt_add_tensor_to_tensor_set) X(nrt_execute) X(nrta_execute_schedule)    \
  X(nrta_is_completed) X(nrta_get_completion_handle) X(nrta_error_tracker_create)                      \
  X(nrta_error_tracker_destroy) X(nrta_error_tracker_get_list) X(nrt_async_drain_queued_execs)         \
  X(nrt_tensor_allocate) X(nrt_tensor_free) X(nrt_tensor_read) X(nrt_tensor_write)                     \
  X(nrt_tensor_copy) X(nrt_tensor_get_size) X(nrt_tensor_memset) X(nrt_tensor_allocate_slice)          \
  X(nrt_tensor_get_va) X(nrta_tensor_write) X(nrta_tensor_read) X(nrta_tensor_copy)                    \
  X(nrt_get_vnc_memory_stats)

// Entry points that may be null; the caller says "not supported on this runtime" when one is.
#define NXL_NRT_OPTIONAL(X)                                                                            \
  X(nrt_load_collectives) X(nrt_execute_repeat) X(nrta_get_sequence) X(nrt_get_dmabuf_fd)              \
  X(nrt_host_device_id_get) X(nrt_host_error_text)
// clang-format on

struct Api {
#define NXL_NRT_FIELD(name) decltype(&::name) name = nullptr;
  NXL_NRT_REQUIRED(NXL_NRT_FIELD)
  NXL_NRT_OPTIONAL(NXL_NRT_FIELD)
#undef NXL_NRT_FIELD
};

}  // namespace nxl::nrt
