// SPDX-License-Identifier: Apache-2.0
// The calls that can report a status, as an enumeration: the C interface and fault injection share it.
#pragma once

namespace nxl::host {

// Rows by hand: clang-format indents each more than the one before, and not the same way when it is run again.
// clang-format off
#define NXL_HOST_CALLS(X)                                                                                      \
  X(nrt_init) X(nrt_get_version) X(nrt_get_instance_info) X(nrt_get_total_vnc_count)                           \
  X(nrt_get_visible_vnc_count) X(nrt_load) X(nrt_load_collectives) X(nrt_unload)                               \
  X(nrt_get_model_tensor_info) X(nrt_free_model_tensor_info) X(nrt_get_model_vnc_count)                        \
  X(nrt_allocate_tensor_set) X(nrt_add_tensor_to_tensor_set) X(nrt_get_tensor_from_tensor_set)                 \
  X(nrt_execute) X(nrt_execute_repeat) X(nrta_execute_schedule) X(nrta_is_completed) X(nrta_get_sequence)      \
  X(nrta_get_completion_handle) X(nrta_error_tracker_create) X(nrta_error_tracker_get_list)                    \
  X(nrt_async_drain_queued_execs) X(nrt_tensor_allocate) X(nrt_tensor_read) X(nrt_tensor_write)                \
  X(nrt_tensor_read_batch) X(nrt_tensor_write_batch) X(nrt_tensor_copy) X(nrt_tensor_memset)                   \
  X(nrt_tensor_allocate_empty) X(nrt_tensor_attach_buffer) X(nrt_tensor_allocate_slice)                        \
  X(nrt_tensor_get_device_allocation_info) X(nrt_get_dmabuf_fd) X(nrt_tensor_check_output_completion)          \
  X(nrt_tensor_reset_output_completion) X(nrta_tensor_write) X(nrta_tensor_read) X(nrta_tensor_copy)           \
  X(nrt_get_vnc_memory_stats) X(nrt_host_device_id_get) X(nrt_build_global_comm) X(nrt_barrier)                \
  X(nrt_host_error_text) X(nrt_async_sendrecv_init) X(nrt_async_sendrecv_close)                                \
  X(nrt_async_sendrecv_connect) X(nrt_async_sendrecv_accept) X(nrt_async_sendrecv_test_comm)                   \
  X(nrt_async_sendrecv_send_tensor) X(nrt_async_sendrecv_recv_tensor) X(nrt_async_sendrecv_test_request)       \
  X(nrt_async_sendrecv_flush) X(nrt_async_sendrecv_get_max_num_communicators_per_lnc)                          \
  X(nrt_async_sendrecv_get_max_num_pending_request)                                                            \
  /* Work on the runtime's own threads: the fault is what the queue or the request reports later. */           \
  X(execute) X(tensor_read) X(tensor_write) X(tensor_copy) X(sendrecv)
// clang-format on

enum class Call {
#define NXL_HOST_CALL(name) name,
  NXL_HOST_CALLS(NXL_HOST_CALL)
#undef NXL_HOST_CALL
};

inline constexpr const char* kCallNames[] = {
#define NXL_HOST_CALL(name) #name,
    NXL_HOST_CALLS(NXL_HOST_CALL)
#undef NXL_HOST_CALL
};
inline constexpr int kCallCount = sizeof(kCallNames) / sizeof(kCallNames[0]);

inline const char* call_name(Call call) { return kCallNames[static_cast<int>(call)]; }

}  // namespace nxl::host
