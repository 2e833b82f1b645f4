// SPDX-License-Identifier: Apache-2.0
// Sockets of the collectives: owners that a forked child gives up, and blocking calls with deadlines.
#pragma once

#include <netinet/in.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace nxl::host {

using Deadline = std::chrono::steady_clock::time_point;

// Move-only owner of a descriptor. A child of a fork closes its copy of every live one: otherwise the death of the
// parent would not show to the peers.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close() noexcept;

  // Whole messages. False when the peer has closed, the deadline passed or `stop` said so; the socket is then useless.
  bool send_all(std::span<const std::byte> bytes, Deadline deadline, const std::function<bool()>& stop = {});
  bool receive_all(std::span<std::byte> bytes, Deadline deadline, const std::function<bool()>& stop = {});

  std::string local_address() const;
  std::string peer_address() const;
  uint16_t local_port() const;

 private:
  int fd_ = -1;
};

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// "host:port" or "[ipv6]:port" resolved to addresses; throws INVALID naming `what`.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};
Address resolve(const std::string& host_and_port, const char* what);

// Throws Error(kUnavailable) with the address and the reason.
Socket listen_at(const Address& address, const std::string& shown);
// Tries until it is accepted, the deadline passes or `stop` says so; invalid then.
Socket connect_to(const Address& address, Deadline deadline, const std::function<bool()>& stop = {});
// Invalid when nobody came.
Socket accept_from(const Socket& listener);

// Async-signal-safe, for the child after a fork.
void close_sockets_in_child() noexcept;

}  // namespace nxl::host
