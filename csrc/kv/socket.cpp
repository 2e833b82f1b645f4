// SPDX-License-Identifier: Apache-2.0
// Unix and TCP sockets.
#include "kv/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "kv/wire.h"

namespace nxl::kv {
namespace {

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

void resolve(const Address& address, int flags, AddressList& list) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list.first);
  NXL_CHECK(error == 0, kUnavailable, address.text(), ": ", ::gai_strerror(error));
}

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  NXL_CHECK(path.size() < sizeof name.sun_path, kInvalid, "unix:", path, ": ", path.size(),
            " bytes, a socket path may have ", sizeof name.sun_path - 1);
  std::memcpy(name.sun_path, path.data(), path.size());
  return name;
}

// True when a socket file is left over from a process that is gone.
bool nobody_listens(const sockaddr_un& name) {
  const GuardedFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe && ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 &&
         errno == ECONNREFUSED;
}

GuardedFd listen_unix(const Address& address) {
  const sockaddr_un name = unix_address(address.path);
  GuardedFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  NXL_CHECK(fd, kUnavailable, address.text(), ": ", std::strerror(errno));
  const auto* raw = reinterpret_cast<const sockaddr*>(&name);
  int result = ::bind(fd.get(), raw, sizeof name);
  if (result != 0 && errno == EADDRINUSE && nobody_listens(name)) {
    ::unlink(address.path.c_str());
    result = ::bind(fd.get(), raw, sizeof name);
  }
  NXL_CHECK(result == 0, kUnavailable, address.text(), ": ", std::strerror(errno),
            errno == EADDRINUSE ? "; another process listens there" : "");
  // Before listen(): until then nobody can connect.
  NXL_CHECK(::chmod(address.path.c_str(), 0600) == 0 && ::listen(fd.get(), 128) == 0, kUnavailable, address.text(),
            ": ", std::strerror(errno));
  return fd;
}

}  // namespace

Address Address::parse(const std::string& text) {
  Address address;
  if (text.starts_with("unix:") && text.size() > 5) {
    address.path = text.substr(5);
    unix_address(address.path);
    return address;
  }
  const size_t colon = text.rfind(':');
  if (text.starts_with("tcp:") && colon != std::string::npos && colon > 4) {
    address.unix_socket = false;
    address.host = text.substr(4, colon - 4);
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
      address.host = address.host.substr(1, address.host.size() - 2);
    }
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (error == std::errc() && stopped == end && !address.host.empty()) return address;
  }
  throw_error(ErrorKind::kInvalid, "address \"" + text + "\" is none of unix:/path, tcp:host:port, tcp:[IPv6]:port");
}

std::string Address::text() const {
  if (unix_socket) return "unix:" + path;
  const bool v6 = host.find(':') != std::string::npos;
  return "tcp:" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool Address::off_host() const {
  return !unix_socket && !host.starts_with("127.") && host != "::1" && host != "localhost";
}

Address Address::numeric() const {
  Address result = *this;
  if (unix_socket) return result;
  AddressList list;
  resolve(*this, 0, list);
  char name[NI_MAXHOST] = "";
  const int error =
      ::getnameinfo(list.first->ai_addr, list.first->ai_addrlen, name, sizeof name, nullptr, 0, NI_NUMERICHOST);
  NXL_CHECK(error == 0, kUnavailable, text(), ": ", ::gai_strerror(error));
  result.host = name;
  return result;
}

GuardedFd listen_at(Address& address) {
  if (address.unix_socket) return listen_unix(address);
  AddressList list;
  resolve(address, AI_PASSIVE, list);
  GuardedFd fd(::socket(list.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  NXL_CHECK(fd, kUnavailable, address.text(), ": ", std::strerror(errno));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  NXL_CHECK(::bind(fd.get(), list.first->ai_addr, list.first->ai_addrlen) == 0 && ::listen(fd.get(), 128) == 0,
            kUnavailable, address.text(), ": ", std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  address.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                   : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return fd;
}

GuardedFd begin_connect(const Address& address) {
  sockaddr_storage to{};
  socklen_t size = 0;
  if (address.unix_socket) {
    const sockaddr_un name = unix_address(address.path);
    std::memcpy(&to, &name, sizeof name);
    size = sizeof name;
  } else {
    AddressList list;
    resolve(address, AI_NUMERICHOST, list);
    std::memcpy(&to, list.first->ai_addr, list.first->ai_addrlen);
    size = list.first->ai_addrlen;
  }
  GuardedFd fd(::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  NXL_CHECK(fd, kUnavailable, address.text(), ": ", std::strerror(errno));
  if (!address.unix_socket) tune_tcp(fd.get());
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), size) != 0 && errno != EINPROGRESS) {
    throw_error(ErrorKind::kUnavailable, address.text() + ": " + std::strerror(errno));
  }
  return fd;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

PeerCredentials peer_credentials(int unix_fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  NXL_CHECK(::getsockopt(unix_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0, kUnavailable,
            "SO_PEERCRED: ", std::strerror(errno));
  return {credentials.pid, credentials.uid};
}

std::string remote_host(int tcp_fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  char host[NI_MAXHOST] = "";
  if (::getpeername(tcp_fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return "";
  ::getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

void tune_tcp(int fd) {
  const int on = 1, idle = 5, interval = 3, probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

ssize_t send_with_descriptors(int fd, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameDescriptors)];
  if (!fds.empty()) {
    std::memset(control, 0, sizeof control);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_with_descriptors(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>& fds) {
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameDescriptors)];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got;
  do {
    got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(received);
    }
  }
  return got;
}

}  // namespace nxl::kv
