// SPDX-License-Identifier: Apache-2.0
// Cores, communicators and requests of send/receive: the calls. What its thread does is in sendrecv_thread.cpp.
#include "host/sendrecv.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "host/core_claims.h"
#include "host/environment.h"
#include "host/log.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

std::atomic<bool> used{false};

}  // namespace

SendRecvLimits SendRecvLimits::from_environment() {
  SendRecvLimits limits;
  const auto read = [](const char* name, int64_t low, int64_t high, int64_t otherwise) {
    return environment_integer(name, low, high).value_or(otherwise);
  };
  limits.communicators =
      static_cast<int>(read("NEURON_LIBTORCH_HOST_SENDRECV_COMMUNICATORS", 1, 1024, limits.communicators));
  limits.pending = static_cast<int>(read("NEURON_LIBTORCH_HOST_SENDRECV_PENDING", 1, 4096, limits.pending));
  limits.timeout = std::chrono::milliseconds(
      read("NEURON_LIBTORCH_HOST_SENDRECV_TIMEOUT_MS", 1, 24 * 3600 * 1000, limits.timeout.count()));
  return limits;
}

SendRecv& SendRecv::instance() {
  static auto* made = new SendRecv;  // its thread may meet the end of the process
  used.store(true, std::memory_order_release);
  return *made;
}

void SendRecv::shut_down() noexcept {
  if (used.load(std::memory_order_acquire)) instance().stop_thread();
}

SendRecv::Core& SendRecv::open_core(int core) {
  const auto found = cores_.find(core);
  if (found == cores_.end() || found->second.state != Core::State::kOpen) {
    refuse(NRT_UNINITIALIZED, "send/receive of core ", core,
           " is not initialised; core numbers are absolute here (nrt_host_device_id_get)");
  }
  return found->second;
}

void SendRecv::init(int core, bool exists) {
  if (!exists) {
    refuse(NRT_INVALID, "core ", core,
           " is none of this process's; core numbers are absolute here (nrt_host_device_id_get)");
  }
  std::lock_guard lock(mutex_);
  Core& opened = cores_[core];
  if (opened.state == Core::State::kOpen) refuse(NRT_INVALID, "send/receive of core ", core, " is initialised already");
  if (opened.state == Core::State::kUnusable) {
    refuse(NRT_FAILURE, "send/receive of core ", core,
           " was closed while requests or connections were open, so it cannot be initialised again in this process");
  }
  network_ = SendRecvNetwork::from_environment();
  limits_ = SendRecvLimits::from_environment();
  opened.listener = std::make_unique<SendRecvListener>(core, network_);
  opened.state = Core::State::kOpen;
  start_thread();
  wake();
}

void SendRecv::close(int core) {
  std::lock_guard lock(mutex_);
  Core& closed = open_core(core);
  const auto count = [&](auto&& which) { return std::ranges::count_if(closed.communicators, which); };
  const auto busy = count([](const auto& each) { return each->in_flight(); });
  const auto unconnected = count([](const auto& each) { return each->state() == Communicator::State::kWaiting; });
  if (busy != 0 || unconnected != 0) {
    closed.state = Core::State::kUnusable;
    refuse(NRT_FAILURE, "send/receive of core ", core, " closed with ", busy,
           " communicators that have requests in flight and ", unconnected,
           " that are not connected; it cannot be initialised again in this process");
  }
  for (void* handle : closed.handles) communicators_.remove(handle);
  closed = {};
  wake();
}

void* SendRecv::open(bool sends, const std::string& peer_ip, int peer_core, int core) {
  const std::string ip = canonical_address(peer_ip);
  if (peer_core < 0 || peer_core >= kTotalCores) {
    refuse(NRT_INVALID, "peer core ", peer_core, " is outside 0 to ", kTotalCores - 1);
  }
  std::lock_guard lock(mutex_);
  Core& own = open_core(core);
  if (own.communicators.size() >= static_cast<size_t>(limits_.communicators)) {
    refuse(NRT_RESOURCE, "core ", core, " has ", own.communicators.size(),
           " communicators, which is the limit (nrt_async_sendrecv_get_max_num_communicators_per_lnc); they go with "
           "nrt_async_sendrecv_close");
  }
  auto made = std::make_shared<Communicator>(sends, core, ip, peer_core);
  void* handle = communicators_.insert(made);
  own.communicators.push_back(made);
  own.handles.push_back(handle);
  if (sends) {
    auto attempt = std::make_unique<Attempt>();
    attempt->communicator = std::move(made);
    attempts_.push_back(std::move(attempt));
  } else {
    std::erase_if(visitors_, [&](const auto& visitor) { return seat(*visitor); });
  }
  wake();
  return handle;
}

bool SendRecv::is_connected(const void* handle) {
  const auto communicator = communicators_.get(handle, "communicator");
  std::lock_guard lock(mutex_);
  if (communicator->state() == Communicator::State::kBroken) {
    refuse(NRT_NETWORK_PROXY_FAILURE, communicator->label(), ": the other end is gone");
  }
  return communicator->state() == Communicator::State::kConnected;
}

void* SendRecv::post(bool sends, const void* handle, View view, int tensor_core, const std::string& tensor_name) {
  const auto communicator = communicators_.get(handle, "communicator");
  std::lock_guard lock(mutex_);
  if (communicator->sends() != sends) {
    refuse(NRT_INVALID, communicator->label(),
           " goes the other way: connect gives a communicator to send on, accept "
           "one to receive on");
  }
  if (tensor_core >= 0 && tensor_core != communicator->core()) {
    refuse(NRT_INVALID, "tensor '", tensor_name, "' is on core ", tensor_core, ", the communicator on core ",
           communicator->core());
  }
  open_core(communicator->core());
  switch (communicator->state()) {
    case Communicator::State::kWaiting:
      refuse(NRT_INVALID, communicator->label(), " is not connected yet (nrt_async_sendrecv_test_comm)");
    case Communicator::State::kBroken:
      refuse(NRT_NETWORK_PROXY_FAILURE, communicator->label(), ": the other end is gone");
    case Communicator::State::kConnected:
      break;
  }
  if (communicator->pending() >= static_cast<uint32_t>(limits_.pending)) {
    return nullptr;  // RESOURCE: callers meet this limit in normal operation, so it is no line in the log
  }
  auto request = std::make_shared<SendRecvRequest>();
  request->communicator = communicator;
  request->view = std::move(view);
  void* made = requests_.insert(request);
  communicator->post(request);
  wake();
  return made;
}

bool SendRecv::test(const void* handle, NRT_STATUS* status, size_t* size) {
  const auto request = requests_.get(handle, "request");
  struct Tester {
    std::atomic<int>& count;
    const bool alone = count.fetch_add(1) == 0;
    ~Tester() { count.fetch_sub(1); }
  } const tester{request->testers};
  if (!tester.alone) refuse(NRT_INVALID, "a request is tested by two threads at once");
  std::lock_guard lock(mutex_);
  *size = 0;
  if (!request->finished) {
    const bool late = Clock::now() - request->moved_at >= limits_.timeout;
    *status = late ? NRT_TIMEOUT : NRT_SUCCESS;
    return false;
  }
  *status = request->status;
  *size = request->size;
  request->communicator->reported();
  if (!request->held.empty()) {
    const auto core = cores_.find(request->communicator->core());
    if (core != cores_.end()) core->second.unflushed.push_back(request);
  }
  requests_.remove(handle);
  return true;
}

void SendRecv::flush(int core) {
  std::lock_guard lock(mutex_);
  Core& own = open_core(core);
  for (const SendRecvRequestPtr& request : own.unflushed) {
    std::memcpy(request->view.address + request->size - request->held.size(), request->held.data(),
                request->held.size());
  }
  own.unflushed.clear();
}

void SendRecv::wake() { eventfd_write(wake_.get(), 1); }

}  // namespace nxl::host
