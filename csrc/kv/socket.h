// SPDX-License-Identifier: Apache-2.0
// Sockets of the control connection: addresses, listening, connecting, credentials, descriptors beside bytes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/api.h"
#include "core/unique_handle.h"
#include "kv/fork_guard.h"

namespace nxl::kv {

struct NXL_API Address {
  bool unix_socket = true;
  std::string path;  // of a Unix socket
  std::string host;  // numeric or a name; IPv6 without its brackets
  uint16_t port = 0;

  // "unix:/path", "tcp:host:port", "tcp:[v6]:port". Throws Error(kInvalid) that shows the forms.
  static Address parse(const std::string& text);
  std::string text() const;
  bool off_host() const;  // may be reached from other hosts
  // With the host's name looked up, which may take the resolver's time. Throws Error(kUnavailable).
  Address numeric() const;
};

// A listening, non-blocking socket. For port 0 `address` gets the real one. A Unix socket's file is made with mode
// 0600; a file that nobody listens at any more is replaced. Throws Error(kUnavailable).
GuardedFd listen_at(Address& address);

// A non-blocking socket whose connect to a numeric address has begun (writable: ask SO_ERROR). Throws
// Error(kUnavailable) at once when it cannot begin.
GuardedFd begin_connect(const Address& address);
int connect_error(int fd);  // SO_ERROR

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
PeerCredentials peer_credentials(int unix_fd);

std::string remote_host(int tcp_fd);  // numeric, empty when unknown

// TCP_NODELAY, and probes that find a host that has gone (RFC 1122 keep-alives) within about 15 s.
void tune_tcp(int fd);

// Bytes sent or received; 0 at the end of the stream (receive), -1 with errno. `fds` travel with the first byte.
ssize_t send_with_descriptors(int fd, std::span<const std::byte> bytes, std::span<const int> fds);
ssize_t receive_with_descriptors(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>& fds);

}  // namespace nxl::kv
