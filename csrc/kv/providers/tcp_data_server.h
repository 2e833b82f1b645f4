// SPDX-License-Identifier: Apache-2.0
// The serving half of `tcp`: one thread, many connections, every byte sent straight from the registered memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/api.h"
#include "core/unique_handle.h"
#include "kv/auth.h"
#include "kv/fork_guard.h"
#include "kv/provider.h"

namespace nxl::kv {

struct TcpServerLimits {
  uint32_t connections = 1024;
  uint32_t unproved = 64;                       // connections that have proved nothing yet
  std::chrono::milliseconds proof_time{5000};   // they get to do so
  std::chrono::milliseconds stall_time{30000};  // a reader that takes nothing of what it asked for is dropped
  uint64_t waiting_runs = 1 << 20;              // of parsed requests; from there on one request a connection
};

// Thread safe. A region is held from the first to the last byte of a request, so that its deregister is BUSY meanwhile.
class NXL_API TcpDataServer {
 public:
  // Takes a listening, non-blocking socket. Throws Error(kUnavailable) when the thread or its wake-up cannot be made.
  TcpDataServer(ProviderHost& host, GuardedFd listener, TcpServerLimits limits = {});
  ~TcpDataServer();  // ends every connection
  TcpDataServer(const TcpDataServer&) = delete;
  TcpDataServer& operator=(const TcpDataServer&) = delete;

  // Readers of this session may connect: whoever knows its secret. `initiator` is true when that is this side.
  void add_session(uint64_t session, const Secret& secret, bool initiator);
  // When it has returned, nothing more is sent to them.
  void remove_session(uint64_t session);

 private:
  class Connection;
  struct Session {
    Secret secret;
    bool initiator;
  };

  void run();
  void wake();
  void accept_waiting();
  bool may_read(const Connection& connection) const;
  std::chrono::milliseconds until_next_deadline() const;

  ProviderHost& host_;
  const GuardedFd listener_;
  const TcpServerLimits limits_;
  UniqueFd wake_;
  std::mutex mutex_;  // held while connections are handled, never while waiting
  bool stopping_ = false;
  uint64_t waiting_runs_ = 0;
  Deadline accept_again_;  // the process was out of descriptors
  std::map<uint64_t, Session> sessions_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::thread thread_;
};

}  // namespace nxl::kv
