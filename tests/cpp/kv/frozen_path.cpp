// SPDX-License-Identifier: Apache-2.0
// The forwarding thread.
#include "kv/frozen_path.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace nxl::kv::test {
namespace {

sockaddr_in address_of(const char* host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

UniqueFd tcp_socket() { return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

}  // namespace

FrozenPath::FrozenPath(const std::vector<uint16_t>& ports) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (const uint16_t port : ports) {
    UniqueFd listener = tcp_socket();
    const sockaddr_in address = address_of("127.0.0.2", port);
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener.get(), 16) != 0) {
      throw std::runtime_error("127.0.0.2:" + std::to_string(port));
    }
    listeners_.emplace_back(port, std::move(listener));
  }
  thread_ = std::thread([this] { run(); });
}

FrozenPath::~FrozenPath() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void FrozenPath::freeze() {
  const std::lock_guard lock(mutex_);  // held while anything is carried
  frozen_ = true;
  ::eventfd_write(wake_.get(), 1);
}

void FrozenPath::thaw() {
  const std::lock_guard lock(mutex_);
  frozen_ = false;
  connections_.clear();
  ::eventfd_write(wake_.get(), 1);
}

bool FrozenPath::carry(int from, int to) {
  char bytes[65536];
  const ssize_t got = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t now = ::send(to, bytes + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (now <= 0) return false;
    sent += now;
  }
  return got > 0;
}

void FrozenPath::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    if (!frozen_) {
      for (const auto& [port, listener] : listeners_) polled.push_back({listener.get(), POLLIN, 0});
      for (const Connection& connection : connections_) {
        polled.push_back({connection.near.get(), POLLIN, 0});
        polled.push_back({connection.far.get(), POLLIN, 0});
      }
    }
    const size_t known = connections_.size();
    lock.unlock();
    ::poll(polled.data(), polled.size(), -1);
    lock.lock();
    eventfd_t ignored;
    if (::eventfd_read(wake_.get(), &ignored) == 0) continue;  // what was polled may be out of date
    for (size_t i = known; i-- != 0;) {
      const size_t at = 1 + listeners_.size() + 2 * i;
      const int near = connections_[i].near.get(), far = connections_[i].far.get();
      const bool open =
          (polled[at].revents == 0 || carry(near, far)) && (polled[at + 1].revents == 0 || carry(far, near));
      if (!open) connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
    }
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (polled[1 + i].revents == 0) continue;
      Connection connection{UniqueFd(::accept4(listeners_[i].second.get(), nullptr, nullptr, SOCK_CLOEXEC)),
                            tcp_socket()};
      const sockaddr_in address = address_of("127.0.0.1", listeners_[i].first);
      if (connection.near &&
          ::connect(connection.far.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        connections_.push_back(std::move(connection));
      }
    }
  }
}

}  // namespace nxl::kv::test
