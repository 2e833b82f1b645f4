// SPDX-License-Identifier: Apache-2.0
// Send/receive between cores of two processes (or of one): the state behind nrt_async_sendrecv_*.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "host/handles.h"
#include "host/sendrecv_communicator.h"
#include "host/sendrecv_rendezvous.h"

namespace nxl::host {

// NEURON_LIBTORCH_HOST_SENDRECV_COMMUNICATORS, _PENDING and _TIMEOUT_MS. The first two are this runtime's own numbers:
// callers must ask for them, because a chip has others.
struct SendRecvLimits {
  int communicators = 64;                    // of one core, both directions; one is given back by close() only
  int pending = 16;                          // requests of one communicator that were not reported as finished
  std::chrono::milliseconds timeout{30000};  // without progress; test_request then says TIMEOUT until there is some
  static SendRecvLimits from_environment();  // throws INVALID
};

// Core numbers are absolute here. One thread moves all bytes; every method is thread safe and returns at once.
class SendRecv {
 public:
  static SendRecv& instance();
  // Ends the thread and every connection; idempotent. Requests in flight never finish then, their memory stays alive.
  static void shut_down() noexcept;

  // Each throws the status that it refuses with.
  void init(int core, bool exists);
  void close(int core);
  void* open(bool sends, const std::string& peer_ip, int peer_core, int core);
  bool is_connected(const void* communicator);  // throws NETWORK_PROXY_FAILURE once the other end is gone
  void* post(bool sends, const void* communicator, View view, int tensor_core, const std::string& tensor_name);
  // True: over, its handle is gone, and `status` and `size` are its result. False with TIMEOUT: no progress for long.
  bool test(const void* request, NRT_STATUS* status, size_t* size);
  void flush(int core);
  static SendRecvLimits limits() { return SendRecvLimits::from_environment(); }

 private:
  using Clock = SendRecvClock;
  using CommunicatorPtr = std::shared_ptr<Communicator>;

  // What the connecting end says first.
  struct Greeting {
    char magic[4];
    uint32_t version;
    int32_t from_core;
    int32_t to_core;
    uint64_t ring;  // 1: a descriptor comes with it
  };
  struct Core {
    enum class State { kOpen, kClosed, kUnusable };
    State state = State::kClosed;
    std::unique_ptr<SendRecvListener> listener;
    std::vector<CommunicatorPtr> communicators;
    std::vector<void*> handles;
    std::vector<SendRecvRequestPtr> unflushed;  // receives that were reported as finished
  };
  // A connection that was begun for a send communicator.
  struct Attempt {
    CommunicatorPtr communicator;
    ForkClosedFd socket;
    bool over_tcp = false;
    bool greeted = false;
    std::unique_ptr<SharedRing> ring;
    Clock::time_point again_at = Clock::now();
    std::chrono::milliseconds pause{5};
    std::string why;  // the last one failed
  };
  // A connection that came in: its greeting is awaited, then the accept that it is for.
  struct Visitor {
    ForkClosedFd socket;
    std::string ip;  // empty: a process of this machine, over the Unix socket
    int core = 0;
    std::vector<std::byte> bytes;
    std::optional<Greeting> greeting;
    UniqueFd ring;
    Clock::time_point deadline;
  };

  SendRecv() = default;
  Core& open_core(int core);  // throws UNINITIALIZED
  void start_thread();
  void wake();
  void stop_thread();
  void run();
  bool advance_all(std::unique_lock<std::mutex>& lock);
  void advance_attempts();
  void drop(Attempt& attempt, std::string why);
  bool begin(Attempt& attempt);
  bool greet(Attempt& attempt);
  bool answered(Attempt& attempt);
  void let_in(int core, int listener, bool tcp);
  bool hear(Visitor& visitor);  // false: it is to be dropped
  bool seat(Visitor& visitor);  // true: its accept was there
  bool is_for(const Visitor& visitor, const Communicator& communicator) const;

  std::mutex mutex_;
  std::map<int, Core> cores_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  std::vector<std::unique_ptr<Visitor>> visitors_;
  HandleTable<Communicator, HandleKind::kCommunicator> communicators_;
  HandleTable<SendRecvRequest, HandleKind::kSendRecvRequest> requests_;
  SendRecvNetwork network_;
  SendRecvLimits limits_;
  ForkClosedFd wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace nxl::host
