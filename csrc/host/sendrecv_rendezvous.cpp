// SPDX-License-Identifier: Apache-2.0
// Sockets, addresses and the descriptor that travels beside bytes.
#include "host/sendrecv_rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "host/core_claims.h"
#include "host/environment.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

constexpr int kBacklog = 64;
constexpr int64_t kLastBasePort = 65535 - kTotalCores;

// One bit a descriptor number: the child of a fork can read it without a lock.
constexpr int kMostDescriptors = 1 << 16;
std::array<std::atomic<uint64_t>, kMostDescriptors / 64> guarded{};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

std::optional<SocketAddress> parse_address(const std::string& ip, uint16_t port) {
  SocketAddress address;
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage); inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.bytes = sizeof(*v4);
    return address;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) != 1) return std::nullopt;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  address.bytes = sizeof(*v6);
  return address;
}

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
      inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof(text));
    } else {
      inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    }
  }
  return text;
}

std::string rendezvous_path(int core) { return claim_folder() + "/sendrecv-" + std::to_string(core); }

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    refuse(NRT_INVALID, "the path ", path, " is longer than a Unix socket's may be (", sizeof(address.sun_path) - 1,
           "); set NEURON_LIBTORCH_HOST_CLAIM_DIR to a shorter folder");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

}  // namespace

void ForkClosedTraits::close(Handle fd) noexcept {
  if (fd < kMostDescriptors) guarded[static_cast<size_t>(fd) / 64].fetch_and(~(uint64_t{1} << (fd % 64)));
  ::close(fd);
}

ForkClosedFd fork_closed(int fd) {
  if (fd >= 0 && fd < kMostDescriptors) guarded[static_cast<size_t>(fd) / 64].fetch_or(uint64_t{1} << (fd % 64));
  return ForkClosedFd(fd);
}

void close_in_forked_child() noexcept {
  for (size_t word = 0; word < guarded.size(); ++word) {
    const uint64_t bits = guarded[word].exchange(0);
    for (uint64_t left = bits; left != 0; left &= left - 1) {
      ::close(static_cast<int>(word * 64) + __builtin_ctzll(left));
    }
  }
}

SendRecvNetwork SendRecvNetwork::from_environment() {
  SendRecvNetwork network;
  if (const char* bind = std::getenv("NEURON_LIBTORCH_HOST_SENDRECV_BIND"); bind && *bind) {
    if (!parse_address(bind, 0)) {
      refuse(NRT_INVALID, "NEURON_LIBTORCH_HOST_SENDRECV_BIND=", bind, " is no numeric IPv4 or IPv6 address");
    }
    network.bind = bind;
  }
  network.port = static_cast<uint16_t>(
      environment_integer("NEURON_LIBTORCH_HOST_SENDRECV_PORT", 1024, kLastBasePort).value_or(network.port));
  return network;
}

std::string canonical_address(const std::string& ip) {
  const auto address = parse_address(ip, 0);
  if (!address) refuse(NRT_INVALID, "'", ip, "' is no numeric IPv4 or IPv6 address");
  return text_of(address->get());
}

bool is_own_address(const std::string& ip) {
  const std::string wanted = canonical_address(ip);
  if (wanted == "::1" || wanted.rfind("127.", 0) == 0) return true;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && text_of(entry->ifa_addr) == wanted) return true;
  }
  return false;
}

SendRecvListener::SendRecvListener(int absolute_core, const SendRecvNetwork& network)
    : path_(rendezvous_path(absolute_core)) {
  const sockaddr_un address = unix_address(path_);
  lock_ = fork_closed(::open((path_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) refuse(NRT_FAILURE, path_, ".lock: ", std::strerror(errno));
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    refuse(NRT_EXEC_NC_BUSY, "send/receive of core ", absolute_core,
           " is in use by another process of this machine; give each process cores of its own with "
           "NEURON_RT_VISIBLE_CORES");
  }
  ::unlink(path_.c_str());  // left behind by a process that was killed: the lock says that nobody listens
  unix_ = fork_closed(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!unix_ || ::bind(unix_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(unix_.get(), kBacklog) != 0) {
    refuse(NRT_FAILURE, path_, ": ", std::strerror(errno));
  }
  if (network.bind.empty()) return;
  const auto port = static_cast<uint16_t>(network.port + absolute_core);
  const auto own = parse_address(network.bind, port);
  tcp_ = fork_closed(::socket(own->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (tcp_) setsockopt(tcp_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!tcp_ || ::bind(tcp_.get(), own->get(), own->bytes) != 0 || ::listen(tcp_.get(), kBacklog) != 0) {
    const int error = errno;
    ::unlink(path_.c_str());
    refuse(error == EADDRINUSE ? NRT_EXEC_NC_BUSY : NRT_FAILURE, "send/receive of core ", absolute_core, " at ",
           network.bind, " port ", port, ": ", std::strerror(error),
           "; NEURON_LIBTORCH_HOST_SENDRECV_PORT sets the port of core 0");
  }
}

SendRecvListener::~SendRecvListener() {
  if (unix_) ::unlink(path_.c_str());
}

ForkClosedFd connect_unix(int peer_core, std::string* why) {
  const sockaddr_un address = unix_address(rendezvous_path(peer_core));
  ForkClosedFd fd = fork_closed(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  *why = std::strerror(errno);
  return {};
}

ForkClosedFd begin_connect_tcp(const std::string& ip, int port, std::string* why) {
  const auto address = parse_address(ip, static_cast<uint16_t>(port));
  ForkClosedFd fd = fork_closed(::socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd && (::connect(fd.get(), address->get(), address->bytes) == 0 || errno == EINPROGRESS)) return fd;
  *why = std::strerror(errno);
  return {};
}

int socket_error(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

void tune_data_socket(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

bool is_same_user(int unix_fd) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  return getsockopt(unix_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 && credentials.uid == geteuid();
}

std::string address_of_peer(int tcp_fd) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  return getpeername(tcp_fd, address, &bytes) == 0 ? text_of(address) : std::string();
}

ssize_t send_with_fd(int socket, std::span<const std::byte> bytes, int fd) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_with_fd(int socket, std::span<std::byte> bytes, UniqueFd* fd) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof(received));
    fd->reset(received);
  }
  return got;
}

}  // namespace nxl::host
