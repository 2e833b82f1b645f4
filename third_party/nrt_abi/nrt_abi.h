/* SPDX-License-Identifier: Apache-2.0
 * The part of the NRT C interface (libnrt.so.1, API 2.0) that this project calls, declared in our own words.
 * Every function returns NRT_STATUS unless noted. Handles are opaque. Outputs come through the trailing pointers. */
#ifndef NXL_NRT_ABI_H_
#define NXL_NRT_ABI_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NRT_API_VERSION_MAJOR 2
#define NRT_API_VERSION_MINOR 0

typedef enum {
  NRT_SUCCESS = 0,
  NRT_FAILURE = 1,
  NRT_INVALID = 2,
  NRT_INVALID_HANDLE = 3,
  NRT_RESOURCE = 4,
  NRT_TIMEOUT = 5,
  NRT_HW_ERROR = 6,
  NRT_QUEUE_FULL = 7,
  NRT_LOAD_NOT_ENOUGH_NC = 9,
  NRT_UNSUPPORTED_NEFF_VERSION = 10,
  NRT_FAIL_HOST_MEM_ALLOC = 11,
  NRT_UNINITIALIZED = 13,
  NRT_CLOSED = 14,
  NRT_QUEUE_EMPTY = 15,
  NRT_EXEC_UNIT_UNRECOVERABLE = 101,
  NRT_EXEC_BAD_INPUT = 1002,
  NRT_EXEC_COMPLETED_WITH_NUM_ERR = 1003,
  NRT_EXEC_COMPLETED_WITH_ERR = 1004,
  NRT_EXEC_NC_BUSY = 1005,
  NRT_EXEC_OOB = 1006,
  NRT_COLL_PENDING = 1100,
  NRT_EXEC_HW_ERR_COLLECTIVES = 1200,
  NRT_EXEC_HW_ERR_HBM_UE = 1201,
  NRT_EXEC_HW_ERR_NC_UE = 1202,
  NRT_EXEC_HW_ERR_DMA_ABORT = 1203,
  NRT_EXEC_SW_NQ_OVERFLOW = 1204,
  NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205,
  NRT_NETWORK_PROXY_FAILURE = 1206
} NRT_STATUS;

typedef enum {
  NRT_TENSOR_PLACEMENT_DEVICE = 0,
  NRT_TENSOR_PLACEMENT_HOST = 1,
  NRT_TENSOR_PLACEMENT_VIRTUAL = 2
} nrt_tensor_placement_t;

typedef enum {
  NRT_FRAMEWORK_TYPE_INVALID = 0,
  NRT_FRAMEWORK_TYPE_NO_FW = 1,
  NRT_FRAMEWORK_TYPE_TENSORFLOW = 2,
  NRT_FRAMEWORK_TYPE_PYTORCH = 3,
  NRT_FRAMEWORK_TYPE_MXNET = 4,
  NRT_FRAMEWORK_TYPE_PRECHECK = 5
} nrt_framework_type_t;

typedef enum {
  NRT_DTYPE_UNKNOWN = 0x0,
  NRT_DTYPE_UINT64 = 0x1,
  NRT_DTYPE_INT8 = 0x2,
  NRT_DTYPE_UINT8 = 0x3,
  NRT_DTYPE_INT16 = 0x4,
  NRT_DTYPE_UINT16 = 0x5,
  NRT_DTYPE_BFLOAT16 = 0x6,
  NRT_DTYPE_FLOAT16 = 0x7,
  NRT_DTYPE_INT32 = 0x8,
  NRT_DTYPE_UINT32 = 0x9,
  NRT_DTYPE_FLOAT32 = 0xA,
  NRT_DTYPE_FP32R = 0xB,
  NRT_DTYPE_INT64 = 0xC,
  NRT_DTYPE_FP8_E3 = 0xD,
  NRT_DTYPE_FP8_E4 = 0xE,
  NRT_DTYPE_FP8_E5 = 0xF
} nrt_dtype_t;

typedef enum { NRT_TENSOR_USAGE_INPUT = 0, NRT_TENSOR_USAGE_OUTPUT = 1 } nrt_tensor_usage_t;

/* Execution units: the top 16 bits of an nrta_seq_t. */
typedef enum {
  NRTA_XU_TENSOR_READ = 0,
  NRTA_XU_TENSOR_WRITE = 1,
  NRTA_XU_TENSOR_OP = 2,
  NRTA_XU_COMPUTE = 3,
  NRTA_XU_COLLECTIVES = 4
} nrta_xu_t;

typedef void nrt_model_t;
typedef void nrt_tensor_t;
typedef void nrt_tensor_set_t;
typedef struct nrta_error_tracker nrta_error_tracker_t;
typedef uint64_t nrta_seq_t;
typedef struct nrt_async_sendrecv_comm nrt_async_sendrecv_comm_t;
typedef struct nrt_async_sendrecv_request nrt_async_sendrecv_request_t;

typedef struct {
  uint32_t family;
  uint32_t size;
  char arch_name[16];
  char device_revision[8];
} nrt_instance_info_t;

typedef struct {
  char name[256];
  nrt_tensor_usage_t usage;
  size_t size; /* bytes */
  nrt_dtype_t dtype;
  uint32_t* shape;
  uint32_t ndim;
} nrt_tensor_info_t;

typedef struct {
  uint64_t tensor_count;
  nrt_tensor_info_t tensor_array[];
} nrt_tensor_info_array_t;

typedef struct {
  size_t bytes_used;
  size_t bytes_limit;
} nrt_vnc_memory_stats_t;

typedef struct {
  uint64_t rt_major;
  uint64_t rt_minor;
  uint64_t rt_patch;
  uint64_t rt_maintenance;
  char rt_detail[128];
  char git_hash[64];
} nrt_version_t;

typedef struct {
  uint64_t offset;
  uint64_t size;
  void* buffer;
} nrt_tensor_batch_op_t;

typedef struct {
  const nrt_tensor_t* tensor;
  const nrt_tensor_batch_op_t* ops;
  uint32_t num_ops;
} nrt_tensor_batch_t;

typedef struct {
  uint64_t physical_address;
  size_t size;
  int hbm_index;
} nrt_tensor_device_allocation_info_t;

typedef struct {
  uint64_t seq_id;
  uint64_t error_code;
} nrta_error_t;

/* Life cycle. The count functions may be called before nrt_init. */
NRT_STATUS nrt_init(nrt_framework_type_t framework, const char* fw_version, const char* fal_version);
void nrt_close(void);
NRT_STATUS nrt_get_version(nrt_version_t* version, size_t size);
NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t size);
NRT_STATUS nrt_get_total_vnc_count(uint32_t* count);
NRT_STATUS nrt_get_visible_vnc_count(uint32_t* count);
const char* nrt_get_status_as_str(NRT_STATUS status);

/* Models. vnc_count is always -1. */
NRT_STATUS nrt_load(const void* neff, size_t size, int32_t vnc, int32_t vnc_count, nrt_model_t** model);
NRT_STATUS nrt_load_collectives(const void* neff, size_t size, int32_t vnc, int32_t vnc_count, uint32_t ctx_device_id,
                                uint32_t ctx_device_count, nrt_model_t** model);
NRT_STATUS nrt_unload(nrt_model_t* model);
NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* model, nrt_tensor_info_array_t** info);
NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* info);
NRT_STATUS nrt_get_model_vnc_count(nrt_model_t* model, uint32_t* count);

/* Tensor sets. A tensor must outlive every set that names it. */
NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** set);
void nrt_destroy_tensor_set(nrt_tensor_set_t** set);
NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* set, const char* name, nrt_tensor_t* tensor);
NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* set, const char* name, nrt_tensor_t** tensor);

/* Execution. */
NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out);
NRT_STATUS nrt_execute_repeat(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, int count);
NRT_STATUS nrta_execute_schedule(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, int queue,
                                 nrta_error_tracker_t* tracker, nrta_seq_t* seq);
NRT_STATUS nrta_is_completed(nrta_seq_t seq, bool* completed);
NRT_STATUS nrta_get_sequence(uint32_t lnc, nrta_xu_t xu, int queue, nrta_seq_t* seq);
NRT_STATUS nrta_get_completion_handle(nrta_seq_t seq, int* fd); /* pollable; the caller closes it */
NRT_STATUS nrta_error_tracker_create(uint32_t lnc, nrta_error_tracker_t** tracker);
void nrta_error_tracker_destroy(nrta_error_tracker_t* tracker);
NRT_STATUS nrta_error_tracker_get_list(nrta_error_tracker_t* tracker, const nrta_error_t** list, size_t* count);
NRT_STATUS nrt_async_drain_queued_execs(int32_t vnc);
/* libnrt_host.so only: why the work of a sequence in this tracker failed, as text, cut to size; empty when unknown. */
NRT_STATUS nrt_host_error_text(nrta_error_tracker_t* tracker, nrta_seq_t seq, char* text, size_t size);

/* Collectives: the ranks meet at NEURON_RT_ROOT_COMM_ID. Both block until all g_device_count of them have come. */
NRT_STATUS nrt_build_global_comm(int32_t vnc, uint32_t g_device_id, uint32_t g_device_count);
NRT_STATUS nrt_barrier(int32_t vnc, uint32_t g_device_id, uint32_t g_device_count);

/* Tensors. vnc is -1 for host placement. */
NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int vnc, size_t size, const char* name,
                               nrt_tensor_t** tensor);
void nrt_tensor_free(nrt_tensor_t** tensor);
NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buffer, size_t offset, size_t size);
NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buffer, size_t offset, size_t size);
NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool unsafe);
NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool unsafe);
NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* src, size_t src_offset, nrt_tensor_t* dst, size_t dst_offset,
                           size_t size); /* two device tensors: same core, else NRT_INVALID */
size_t nrt_tensor_get_size(const nrt_tensor_t* tensor);
NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value, size_t size);
NRT_STATUS nrt_tensor_allocate_empty(const char* name, nrt_tensor_t** tensor);
NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t* tensor, void* buffer, size_t size);
NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* src, size_t offset, size_t size, const char* name,
                                     nrt_tensor_t** slice); /* shares storage with src */
void* nrt_tensor_get_va(const nrt_tensor_t* tensor);        /* NULL on failure */
NRT_STATUS nrt_tensor_get_device_allocation_info(const nrt_tensor_t* tensor, nrt_tensor_device_allocation_info_t* info);
NRT_STATUS nrt_get_dmabuf_fd(uint64_t va, uint64_t size, int* fd);
NRT_STATUS nrt_tensor_check_output_completion(const nrt_tensor_t* tensor, int64_t timeout_us, uint64_t count);
NRT_STATUS nrt_tensor_reset_output_completion(nrt_tensor_t* tensor);

/* Queued tensor operations; nrta_tensor_read takes the buffer FIRST. */
NRT_STATUS nrta_tensor_write(nrt_tensor_t* tensor, const void* buffer, uint64_t offset, uint64_t size, int queue,
                             nrta_error_tracker_t* tracker, nrta_seq_t* seq);
NRT_STATUS nrta_tensor_read(void* buffer, nrt_tensor_t* tensor, uint64_t offset, uint64_t size, int queue,
                            nrta_error_tracker_t* tracker, nrta_seq_t* seq);
NRT_STATUS nrta_tensor_copy(nrt_tensor_t* src, uint64_t src_offset, nrt_tensor_t* dst, uint64_t dst_offset,
                            uint64_t size, int queue, nrta_error_tracker_t* tracker, nrta_seq_t* seq);

/* Memory. The statistics struct may grow at its end: sizes are passed both ways. */
NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats, size_t size_in, size_t* size_out);
NRT_STATUS nrt_host_device_id_get(int vnc, uint32_t* id);

/* Send/receive between cores. Core numbers are ABSOLUTE on their host, whatever subset is visible. A communicator goes
 * one way (connect: send, accept: receive) and lives until its core is closed; the n-th send on it meets the n-th
 * receive; nothing is ever cancelled. test_request: done once only and by one thread; TIMEOUT leaves the request in
 * flight. Received bytes may be used after flush. Over the limit of pending requests a post gives RESOURCE. Closing a
 * core with requests in flight or communicators not connected is an error, and the core cannot be initialised again. */
NRT_STATUS nrt_async_sendrecv_init(int lnc);
NRT_STATUS nrt_async_sendrecv_close(int lnc);
NRT_STATUS nrt_async_sendrecv_connect(const char* peer_ip, int peer_lnc, int lnc,
                                      nrt_async_sendrecv_comm_t** send_comm);
NRT_STATUS nrt_async_sendrecv_accept(const char* peer_ip, int peer_lnc, int lnc, nrt_async_sendrecv_comm_t** recv_comm);
NRT_STATUS nrt_async_sendrecv_test_comm(nrt_async_sendrecv_comm_t* comm, bool* connected);
NRT_STATUS nrt_async_sendrecv_send_tensor(nrt_tensor_t* tensor, size_t offset, size_t length,
                                          nrt_async_sendrecv_comm_t* send_comm, nrt_async_sendrecv_request_t** request);
NRT_STATUS nrt_async_sendrecv_recv_tensor(nrt_tensor_t* tensor, size_t offset, size_t length,
                                          nrt_async_sendrecv_comm_t* recv_comm, nrt_async_sendrecv_request_t** request);
NRT_STATUS nrt_async_sendrecv_test_request(nrt_async_sendrecv_request_t* request, bool* done, size_t* size);
NRT_STATUS nrt_async_sendrecv_flush(int lnc);
NRT_STATUS nrt_async_sendrecv_get_max_num_communicators_per_lnc(int* count);
NRT_STATUS nrt_async_sendrecv_get_max_num_pending_request(int* count);

#ifdef __cplusplus
}
#endif
#endif /* NXL_NRT_ABI_H_ */
