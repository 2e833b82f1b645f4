// SPDX-License-Identifier: Apache-2.0
// The thread of rank 0 that collects the ranks and passes on who ends.
#include "host/collectives/rendezvous.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>

#include "host/log.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(5);  // for a message of a few hundred bytes

void send_notice(Socket& socket, Notice::Kind kind, uint32_t value) {
  const Notice notice{kind, value};
  if (socket && !socket.send_all(bytes_of(notice), Clock::now() + kPatience)) socket.close();
}

void refuse_peer(Socket& socket, const std::string& text) {
  const Notice notice{Notice::Kind::kRefused, static_cast<uint32_t>(text.size())};
  const Deadline deadline = Clock::now() + kPatience;
  if (socket.send_all(bytes_of(notice), deadline)) socket.send_all(std::as_bytes(std::span(text)), deadline);
}

}  // namespace

RootService::RootService(const std::string& root, uint32_t count)
    : count_(count),
      listener_(listen_at(resolve(root, "NEURON_RT_ROOT_COMM_ID"), "NEURON_RT_ROOT_COMM_ID=" + root)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peers_(count),
      present_(count) {
  if (wake_ < 0) refuse(NRT_RESOURCE, "the rendezvous: no event descriptor is left");
  thread_ = std::thread([this] { serve(); });
}

RootService::~RootService() {
  stop_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
  thread_.join();
  ::close(wake_);
}

std::string RootService::missing() const {
  std::string text;
  for (uint32_t rank = 0; rank < count_; ++rank) {
    if (!present_[rank]) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

void RootService::serve() {
  while (!stop_) {
    std::vector<pollfd> entries{{wake_, POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < count_; ++rank) {
      if (!peers_[rank].socket) continue;
      entries.push_back({peers_[rank].socket.fd(), POLLIN, 0});
      ranks.push_back(rank);
    }
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (entries[i + 2].revents != 0) hear(peers_[ranks[i]]);
    }
    if (entries[1].revents != 0) admit(accept_from(listener_));
  }
  tell_all({Notice::Kind::kLeft, 0});
}

void RootService::admit(Socket socket) {
  if (!socket) return;
  Hello hello;
  // Whoever connects and says nothing holds the others up for a moment, not for ever.
  if (!socket.receive_all(writable_bytes_of(hello), Clock::now() + std::chrono::seconds(1)) ||
      hello.magic != kRendezvousMagic) {
    log_parts(LogLevel::kWarning, "the rendezvous: ", socket.peer_address(), " is no rank of this runtime");
    return;
  }
  Member& member = hello.member;
  if (member.count != count_ || member.rank >= count_) {
    return refuse_peer(socket, nxl::detail::concat("rank ", member.rank, " of ", member.count, " came to a world of ",
                                                   count_, " ranks"));
  }
  Peer& peer = peers_[member.rank];
  if (peer.known) {
    return refuse_peer(socket,
                       nxl::detail::concat("rank ", member.rank, " is there already, as process ", peer.member.process,
                                           "; give each engine a NEURON_RT_ROOT_COMM_ID of its own"));
  }
  const std::string address = socket.peer_address();
  std::memset(member.address, 0, sizeof(member.address));
  std::strncpy(member.address, address.c_str(), sizeof(member.address) - 1);
  member.host[sizeof(member.host) - 1] = '\0';
  peer = {std::move(socket), member, true, false};
  present_[member.rank] = true;
  start_if_complete();
}

void RootService::start_if_complete() {
  for (const Peer& peer : peers_) {
    if (!peer.known) return;
  }
  started_ = true;
  std::array<std::byte, kTokenBytes> token{};
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    log_parts(LogLevel::kWarning, "the rendezvous: no random bytes");
  }
  std::vector<Member> table;
  for (const Peer& peer : peers_) table.push_back(peer.member);
  for (Peer& peer : peers_) {
    if (!peer.socket) continue;
    const Deadline deadline = Clock::now() + kPatience;
    const Notice notice{Notice::Kind::kTable, count_};
    if (!peer.socket.send_all(bytes_of(notice), deadline) || !peer.socket.send_all(token, deadline) ||
        !peer.socket.send_all(std::as_bytes(std::span(table)), deadline)) {
      log_parts(LogLevel::kWarning, "the rendezvous: rank ", peer.member.rank, " takes no messages");
    }
  }
  for (const Peer& peer : peers_) {
    if (!peer.socket) tell_all({peer.left ? Notice::Kind::kLeft : Notice::Kind::kGone, peer.member.rank});
  }
}

void RootService::hear(Peer& peer) {
  Notice notice;
  if (peer.socket.receive_all(writable_bytes_of(notice), Clock::now() + kPatience) &&
      notice.kind == Notice::Kind::kLeft) {
    peer.left = true;
  }
  // A rank says nothing else: this is its end, announced or not.
  peer.socket.close();
  if (started_) {
    tell_all({peer.left ? Notice::Kind::kLeft : Notice::Kind::kGone, peer.member.rank});
  } else {
    present_[peer.member.rank] = false;
    peer = Peer{};  // it may come again
  }
}

void RootService::tell_all(const Notice& notice) {
  if (!started_) return;
  for (Peer& peer : peers_) send_notice(peer.socket, notice.kind, notice.value);
}

}  // namespace nxl::host
