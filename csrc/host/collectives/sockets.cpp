// SPDX-License-Identifier: Apache-2.0
// Non-blocking sockets behind calls that wait with poll.
#include "host/collectives/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "host/refusal.h"

namespace nxl::host {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSlice = std::chrono::milliseconds(50);  // how often `stop` is asked
constexpr auto kRetry = std::chrono::milliseconds(20);

// Every live descriptor, for the child of a fork; more than these many stay open there.
std::array<std::atomic<int>, 4096> live_sockets{};  // fd + 1, 0 is free

void remember(int fd) {
  for (auto& slot : live_sockets) {
    int expected = 0;
    if (slot.compare_exchange_strong(expected, fd + 1)) return;
  }
}

void forget(int fd) {
  for (auto& slot : live_sockets) {
    int expected = fd + 1;
    if (slot.compare_exchange_strong(expected, 0)) return;
  }
}

// True when ready (or in error, which the next call reports).
bool wait_for(int fd, short events, Deadline deadline, const std::function<bool()>& stop) {
  for (;;) {
    if (stop && stop()) return false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), kSlice.count())));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

std::string text_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  } else if (address.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof(text));
  }
  return text;
}

void set_no_delay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd >= 0) remember(fd);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::close() noexcept {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  forget(fd);
  ::close(fd);
}

bool Socket::send_all(std::span<const std::byte> bytes, Deadline deadline, const std::function<bool()>& stop) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(fd_, POLLOUT, deadline, stop)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool Socket::receive_all(std::span<std::byte> bytes, Deadline deadline, const std::function<bool()>& stop) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return false;
    } else if (errno == EAGAIN) {
      if (!wait_for(fd_, POLLIN, deadline, stop)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::string Socket::local_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  return getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? text_of(address) : "";
}

std::string Socket::peer_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  return getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? text_of(address) : "";
}

uint16_t Socket::local_port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  const bool is_v6 = address.ss_family == AF_INET6;
  return ntohs(is_v6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                     : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Address resolve(const std::string& host_and_port, const char* what) {
  const size_t colon = host_and_port.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == host_and_port.size()) {
    refuse(NRT_INVALID, what, "=", host_and_port, " is not host:port, such as 10.0.0.5:62182");
  }
  std::string host = host_and_port.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), host_and_port.c_str() + colon + 1, &hints, &found);
  if (error != 0) refuse(NRT_INVALID, what, "=", host_and_port, ": ", gai_strerror(error));
  Address address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

Socket listen_at(const Address& address, const std::string& shown) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  if (socket) setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (!socket || ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
      ::listen(socket.fd(), 1024) != 0) {
    throw_error(ErrorKind::kUnavailable, nxl::detail::concat("listening at ", shown, ": ", std::strerror(errno)),
                NRT_FAILURE);
  }
  return socket;
}

Socket connect_to(const Address& address, Deadline deadline, const std::function<bool()>& stop) {
  while (!(stop && stop()) && Clock::now() < deadline) {
    Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return socket;
    const int begun = ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.size);
    int error = begun == 0 ? 0 : errno;
    if (error == EINPROGRESS && wait_for(socket.fd(), POLLOUT, deadline, stop)) {
      socklen_t size = sizeof(error);
      if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    // A port of the ephemeral range can connect to itself while nobody listens there.
    const bool is_itself =
        error == 0 && socket.local_port() == ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port) &&
        socket.local_address() == socket.peer_address();
    if (error == 0 && !is_itself) {
      set_no_delay(socket.fd());
      return socket;
    }
    socket.close();
    std::this_thread::sleep_for(kRetry);  // the listener may not be there yet
  }
  return Socket();
}

Socket accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) set_no_delay(socket.fd());
  return socket;
}

void close_sockets_in_child() noexcept {
  for (auto& slot : live_sockets) {
    const int fd = slot.exchange(0) - 1;
    if (fd >= 0) ::close(fd);
  }
}

}  // namespace nxl::host
