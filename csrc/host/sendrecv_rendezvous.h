// SPDX-License-Identifier: Apache-2.0
// Where the cores of two processes find each other for send/receive: a Unix socket per core on one machine, TCP else.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "core/unique_handle.h"

namespace nxl::host {

// Descriptors that the child of a fork closes at once: while it held one, a dead parent would look alive.
struct ForkClosedTraits {
  using Handle = int;
  static constexpr Handle kEmpty = -1;
  static void close(Handle fd) noexcept;
};
using ForkClosedFd = UniqueHandle<ForkClosedTraits>;
ForkClosedFd fork_closed(int fd);
void close_in_forked_child() noexcept;  // async-signal-safe

// NEURON_LIBTORCH_HOST_SENDRECV_BIND and _PORT. Core N listens on port + N; an empty address: Unix sockets only.
struct SendRecvNetwork {
  std::string bind;  // numeric
  uint16_t port = 45645;
  static SendRecvNetwork from_environment();  // throws INVALID
};

// True for loopback addresses and those of this machine's interfaces. Throws INVALID for what is no numeric address.
bool is_own_address(const std::string& ip);
// One spelling for one address: "::ffff:10.0.0.1" is "10.0.0.1". Throws INVALID as above.
std::string canonical_address(const std::string& ip);

// The listening sockets of one core. Throws NC_BUSY when another process of this machine listens for the same core.
class SendRecvListener {
 public:
  SendRecvListener(int absolute_core, const SendRecvNetwork& network);
  ~SendRecvListener();
  SendRecvListener(const SendRecvListener&) = delete;
  SendRecvListener& operator=(const SendRecvListener&) = delete;

  int unix_fd() const { return unix_.get(); }
  int tcp_fd() const { return tcp_.get(); }  // -1 without NEURON_LIBTORCH_HOST_SENDRECV_BIND

 private:
  std::string path_;
  ForkClosedFd lock_, unix_, tcp_;
};

// A connection that was begun; -1 with the reason in `why`. The Unix one is complete at once.
ForkClosedFd connect_unix(int peer_core, std::string* why);
ForkClosedFd begin_connect_tcp(const std::string& ip, int port, std::string* why);
int socket_error(int fd);  // SO_ERROR
void tune_data_socket(int fd);

bool is_same_user(int unix_fd);
std::string address_of_peer(int tcp_fd);  // canonical; empty when unknown

// As send and recv without waiting; one descriptor may travel with the first byte.
ssize_t send_with_fd(int socket, std::span<const std::byte> bytes, int fd);
ssize_t receive_with_fd(int socket, std::span<std::byte> bytes, UniqueFd* fd);

}  // namespace nxl::host
