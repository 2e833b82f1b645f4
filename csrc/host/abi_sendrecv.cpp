// SPDX-License-Identifier: Apache-2.0
// Exported functions: send/receive between cores.
#include <algorithm>

#include "host/edge.h"
#include "host/sendrecv.h"

using namespace nxl::host;

namespace {

template <typename T>
T& required(T* pointer, const char* what) {
  if (pointer == nullptr) refuse(NRT_INVALID, what, " is null");
  return *pointer;
}

NRT_STATUS open_communicator(bool sends, const char* peer_ip, int peer_lnc, int lnc, nrt_async_sendrecv_comm_t** out) {
  required(out, "the result");
  *out = static_cast<nrt_async_sendrecv_comm_t*>(
      SendRecv::instance().open(sends, &required(peer_ip, "the peer's address"), peer_lnc, lnc));
  return NRT_SUCCESS;
}

NRT_STATUS post(bool sends, const nrt_tensor_t* tensor, size_t offset, size_t length, nrt_async_sendrecv_comm_t* comm,
                nrt_async_sendrecv_request_t** out) {
  required(out, "the result");
  Runtime& runtime = Runtime::instance();
  const auto found = runtime.tensors.get(tensor, "tensor");
  View view = found->range(offset, length);
  const int core = view.storage->core < 0 ? -1 : runtime.core(view.storage->core)->absolute_id();
  void* request = SendRecv::instance().post(sends, comm, std::move(view), core, found->name());
  if (request == nullptr) return NRT_RESOURCE;
  *out = static_cast<nrt_async_sendrecv_request_t*>(request);
  return NRT_SUCCESS;
}

}  // namespace

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_init(int lnc) {
  return at_edge(Call::nrt_async_sendrecv_init, [&] {
    const auto& cores = Runtime::instance().cores();
    SendRecv::instance().init(lnc,
                              std::ranges::any_of(cores, [&](const auto& core) { return core->absolute_id() == lnc; }));
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_close(int lnc) {
  return at_edge(Call::nrt_async_sendrecv_close, [&] {
    SendRecv::instance().close(lnc);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_connect(const char* peer_ip, int peer_lnc, int lnc,
                                                      nrt_async_sendrecv_comm_t** send_comm) {
  return at_edge(Call::nrt_async_sendrecv_connect,
                 [&] { return open_communicator(true, peer_ip, peer_lnc, lnc, send_comm); });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_accept(const char* peer_ip, int peer_lnc, int lnc,
                                                     nrt_async_sendrecv_comm_t** recv_comm) {
  return at_edge(Call::nrt_async_sendrecv_accept,
                 [&] { return open_communicator(false, peer_ip, peer_lnc, lnc, recv_comm); });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_test_comm(nrt_async_sendrecv_comm_t* comm, bool* connected) {
  return at_edge(Call::nrt_async_sendrecv_test_comm, [&] {
    required(connected, "the result") = SendRecv::instance().is_connected(comm);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_send_tensor(nrt_tensor_t* tensor, size_t offset, size_t length,
                                                          nrt_async_sendrecv_comm_t* send_comm,
                                                          nrt_async_sendrecv_request_t** request) {
  return at_edge(Call::nrt_async_sendrecv_send_tensor,
                 [&] { return post(true, tensor, offset, length, send_comm, request); });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_recv_tensor(nrt_tensor_t* tensor, size_t offset, size_t length,
                                                          nrt_async_sendrecv_comm_t* recv_comm,
                                                          nrt_async_sendrecv_request_t** request) {
  return at_edge(Call::nrt_async_sendrecv_recv_tensor,
                 [&] { return post(false, tensor, offset, length, recv_comm, request); });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_test_request(nrt_async_sendrecv_request_t* request, bool* done,
                                                           size_t* size) {
  return at_edge(Call::nrt_async_sendrecv_test_request, [&] {
    NRT_STATUS status = NRT_SUCCESS;
    size_t moved = 0;
    required(done, "the result") = SendRecv::instance().test(request, &status, &moved);
    if (size != nullptr) *size = moved;
    return status;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_flush(int lnc) {
  return at_edge(Call::nrt_async_sendrecv_flush, [&] {
    SendRecv::instance().flush(lnc);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_get_max_num_communicators_per_lnc(int* count) {
  return at_edge(Call::nrt_async_sendrecv_get_max_num_communicators_per_lnc, [&] {
    required(count, "the result") = SendRecv::limits().communicators;
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_async_sendrecv_get_max_num_pending_request(int* count) {
  return at_edge(Call::nrt_async_sendrecv_get_max_num_pending_request, [&] {
    required(count, "the result") = SendRecv::limits().pending;
    return NRT_SUCCESS;
  });
}
