// SPDX-License-Identifier: Apache-2.0
// Groups over TCP: one connection for each pair, all of them served at once in every round.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "host/collectives/group.h"
#include "host/collectives/world.h"
#include "nrt_abi.h"

namespace nxl::host {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSliceMs = 50;  // how often a waiter looks for lost members

struct Head {
  Signature signature;
  uint64_t bytes = 0;
};

class TcpGroup final : public Group {
 public:
  TcpGroup(World& world, std::vector<uint32_t> members, size_t me, uint64_t name)
      : Group(world, std::move(members), me), links_(size()) {
    const Deadline deadline = Clock::now() + world.options().limit;
    for (size_t i = 0; i < size(); ++i) {
      if (i == me_) continue;
      // The later member of a pair opens the connection.
      links_[i].socket = i < me_ ? open_connection(world, name, members_[i], deadline)
                                 : world.take_connection(name, members_[i], deadline);
      if (!links_[i].socket) fail_waiting(i, kJoining, why_gone(i, "it did not come to its first collective in time"));
    }
  }

 private:
  struct Link {
    Socket socket;
    Head sent_head;
    Head got_head;
    const std::byte* data = nullptr;  // of this round, to the member
    size_t data_bytes = 0;
    size_t sent = 0;  // head and data
    size_t got = 0;
    size_t expected = sizeof(Head);
    std::vector<std::byte> inbox;
    bool is_done() const { return sent == sizeof(Head) + data_bytes && got == expected; }
  };

  std::string why_gone(size_t member, const char* otherwise) const {
    // Rank 0 may be about to say why the connection broke.
    const auto until = Clock::now() + std::chrono::milliseconds(500);
    do {
      if (auto why = world_.lost(members_[member], true)) return *why;
      ::poll(nullptr, 0, 10);
    } while (Clock::now() < until);
    return otherwise;
  }

  void exchange(const Signature& signature, const Outgoing& outgoing, const Incoming& incoming) override {
    for (size_t i = 0; i < size(); ++i) {
      if (i == me_) continue;
      Link& link = links_[i];
      link.data = outgoing.piece(i);
      link.data_bytes = outgoing.sent_by(me_) ? outgoing.piece_bytes : 0;
      link.sent_head = {signature, link.data_bytes};
      link.sent = link.got = 0;
      link.expected = sizeof(Head);
    }
    serve(signature);
    std::vector<const std::byte*> from(size());
    for (size_t i = 0; i < size(); ++i) from[i] = i == me_ ? outgoing.piece(me_) : links_[i].inbox.data();
    if (incoming) incoming(from.data());
  }

  void serve(const Signature& signature) {
    const Deadline deadline = Clock::now() + world_.options().limit;
    for (;;) {
      std::vector<pollfd> entries;
      std::vector<size_t> waiting;
      bool moved = false;
      for (size_t i = 0; i < size(); ++i) {
        if (i == me_ || links_[i].is_done()) continue;
        Link& link = links_[i];
        moved |= push(i, link, signature);
        moved |= pull(i, link, signature);
        if (link.is_done()) continue;
        const bool sends = link.sent < sizeof(Head) + link.data_bytes;
        entries.push_back({link.socket.fd(), static_cast<short>(POLLIN | (sends ? POLLOUT : 0)), 0});
        waiting.push_back(i);
      }
      if (waiting.empty()) return;
      if (moved) continue;
      ::poll(entries.data(), entries.size(), kSliceMs);
      for (const size_t i : waiting) {
        // What a member sent before it went is still read; only one that owes bytes fails the round.
        if (links_[i].got == links_[i].expected) continue;
        const auto why = world_.lost(members_[i], true);
        if (why && !pull(i, links_[i], signature)) fail_waiting(i, signature, *why);
      }
      if (Clock::now() >= deadline) {
        fail_waiting(waiting[0], signature,
                     "it did not come within " + std::to_string(world_.options().limit.count() / 1000) +
                         " s (NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT)");
      }
    }
  }

  // Each returns whether bytes moved.
  bool push(size_t member, Link& link, const Signature& signature) {
    bool moved = false;
    while (link.sent < sizeof(Head) + link.data_bytes) {
      const bool in_head = link.sent < sizeof(Head);
      const std::byte* from = in_head ? reinterpret_cast<const std::byte*>(&link.sent_head) + link.sent
                                      : link.data + (link.sent - sizeof(Head));
      const size_t bytes = (in_head ? sizeof(Head) : sizeof(Head) + link.data_bytes) - link.sent;
      const ssize_t sent = ::send(link.socket.fd(), from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (sent < 0) fail_waiting(member, signature, why_gone(member, "its connection broke"));
      link.sent += static_cast<size_t>(sent);
      moved = true;
    }
    return moved;
  }

  bool pull(size_t member, Link& link, const Signature& signature) {
    bool moved = false;
    while (link.got < link.expected) {
      const bool in_head = link.got < sizeof(Head);
      std::byte* to = in_head ? reinterpret_cast<std::byte*>(&link.got_head) + link.got
                              : link.inbox.data() + (link.got - sizeof(Head));
      const size_t bytes = (in_head ? sizeof(Head) : link.expected) - link.got;
      const ssize_t got = ::recv(link.socket.fd(), to, bytes, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (got <= 0) fail_waiting(member, signature, why_gone(member, "its connection broke"));
      link.got += static_cast<size_t>(got);
      moved = true;
      if (link.got == sizeof(Head) && in_head) take_head(member, link, signature);
    }
    return moved;
  }

  void take_head(size_t member, Link& link, const Signature& signature) {
    if (link.got_head.signature != signature || link.got_head.bytes > round_bytes()) {
      fail_disagreeing(member, link.got_head.signature, signature);
    }
    link.inbox.resize(link.got_head.bytes);
    link.expected = sizeof(Head) + link.got_head.bytes;
  }

  void leave(const std::string&) noexcept override {
    // Not closed: what the others have not read yet, such as the head that shows them the difference, would be lost.
    for (Link& link : links_) {
      if (link.socket) ::shutdown(link.socket.fd(), SHUT_WR);
    }
  }

  std::vector<Link> links_;
};

}  // namespace

std::unique_ptr<Group> join_tcp(World& world, std::vector<uint32_t> members, size_t me, uint64_t name) {
  return std::make_unique<TcpGroup>(world, std::move(members), me, name);
}

}  // namespace nxl::host
