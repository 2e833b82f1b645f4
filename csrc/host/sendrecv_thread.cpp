// SPDX-License-Identifier: Apache-2.0
// The thread of send/receive: it brings connecting and accepting ends together and moves the bytes of all.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "host/faults.h"
#include "host/log.h"
#include "host/refusal.h"
#include "host/sendrecv.h"

namespace nxl::host {
namespace {

using std::chrono::milliseconds;

constexpr char kMagic[4] = {'N', 'X', 'S', 'R'};
constexpr uint32_t kVersion = 1;
constexpr char kWelcome = 'W';
constexpr milliseconds kGreetingTime(5000);
constexpr milliseconds kLongestPause(200);
constexpr size_t kMostVisitors = 256;  // of all cores: connections that no accept has taken yet

}  // namespace

void SendRecv::start_thread() {
  if (thread_.joinable()) return;
  wake_ = fork_closed(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) refuse(NRT_RESOURCE, "eventfd: ", std::strerror(errno));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    refuse(NRT_RESOURCE, "the thread of send/receive: ", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void SendRecv::stop_thread() {
  std::thread ending;
  {
    std::lock_guard lock(mutex_);
    if (!thread_.joinable()) return;
    stopping_ = true;
    wake();
    ending = std::move(thread_);
  }
  ending.join();
  std::lock_guard lock(mutex_);
  attempts_.clear();
  visitors_.clear();
  for (auto& [number, core] : cores_) {
    core.listener.reset();
    for (const CommunicatorPtr& communicator : core.communicators) communicator->abandon();
  }
}

void SendRecv::run() {
  pthread_setname_np(pthread_self(), "nrt-sendrecv");
  std::vector<pollfd> polled;
  struct Door {
    int core;
    bool tcp;
  };
  std::vector<Door> doors;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    advance_attempts();
    std::erase_if(visitors_, [&](const auto& visitor) {
      return visitor->socket.get() < 0 || (!visitor->greeting && Clock::now() >= visitor->deadline);
    });
    const bool moved = advance_all(lock);
    polled.assign(1, {wake_.get(), POLLIN, 0});
    doors.clear();
    Clock::time_point next = Clock::now() + milliseconds(1000);
    for (auto& [number, core] : cores_) {
      for (const CommunicatorPtr& communicator : core.communicators) {
        if (communicator->state() != Communicator::State::kConnected) continue;
        polled.push_back(
            {communicator->fd(), static_cast<short>(communicator->wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0});
      }
    }
    for (const auto& attempt : attempts_) {
      if (attempt->socket) {
        polled.push_back({attempt->socket.get(), static_cast<short>(attempt->greeted ? POLLIN : POLLOUT), 0});
      } else {
        next = std::min(next, attempt->again_at);
      }
    }
    const size_t first_visitor = polled.size();
    for (const auto& visitor : visitors_) polled.push_back({visitor->socket.get(), POLLIN, 0});
    const size_t first_door = polled.size();
    for (auto& [number, core] : cores_) {
      if (!core.listener) continue;
      polled.push_back({core.listener->unix_fd(), POLLIN, 0});
      doors.push_back({number, false});
      if (core.listener->tcp_fd() < 0) continue;
      polled.push_back({core.listener->tcp_fd(), POLLIN, 0});
      doors.push_back({number, true});
    }
    const auto wait = moved ? milliseconds(0) : std::chrono::ceil<milliseconds>(next - Clock::now());
    lock.unlock();
    ::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(0, wait.count())));
    lock.lock();
    eventfd_t ignored;
    if (polled[0].revents != 0) eventfd_read(wake_.get(), &ignored);
    // A call may have taken visitors or closed doors meanwhile: what is handled is looked up by its descriptor.
    for (size_t i = first_visitor; i < first_door; ++i) {
      if (polled[i].revents == 0) continue;
      const auto found =
          std::ranges::find_if(visitors_, [&](const auto& visitor) { return visitor->socket.get() == polled[i].fd; });
      if (found != visitors_.end() && (!hear(**found) || seat(**found))) visitors_.erase(found);
    }
    for (size_t i = 0; i < doors.size(); ++i) {
      if (polled[first_door + i].revents != 0) let_in(doors[i].core, polled[first_door + i].fd, doors[i].tcp);
    }
  }
}

bool SendRecv::advance_all(std::unique_lock<std::mutex>& lock) {
  std::vector<CommunicatorPtr> all;
  for (const auto& [number, core] : cores_) all.insert(all.end(), core.communicators.begin(), core.communicators.end());
  bool any = false;
  for (const CommunicatorPtr& communicator : all) {
    if (communicator->state() != Communicator::State::kConnected) continue;
    any |= communicator->advance();
    while (communicator->can_begin()) {
      NRT_STATUS injected = NRT_SUCCESS;
      if (Faults::instance().active()) {  // it may sleep
        lock.unlock();
        injected = Faults::instance().inject(Call::sendrecv);
        lock.lock();
        if (!communicator->can_begin()) break;
      }
      communicator->begin(injected);
      communicator->advance();
      any = true;
    }
  }
  return any;
}

void SendRecv::drop(Attempt& attempt, std::string why) {
  if (why != attempt.why) log_parts(LogLevel::kInfo, attempt.communicator->label(), ": ", why, "; it is tried again");
  attempt.why = std::move(why);
  attempt.socket.reset();
  attempt.ring.reset();
  attempt.greeted = false;
  attempt.again_at = Clock::now() + attempt.pause;
  attempt.pause = std::min(attempt.pause * 2, kLongestPause);
}

void SendRecv::advance_attempts() {
  std::erase_if(attempts_, [&](const auto& each) {
    Attempt& attempt = *each;
    const auto core = cores_.find(attempt.communicator->core());
    const bool wanted =
        core != cores_.end() && std::ranges::count(core->second.communicators, attempt.communicator) != 0;
    if (!wanted) return true;
    if (!attempt.socket && Clock::now() < attempt.again_at) return false;
    if (!attempt.socket && !begin(attempt)) return false;
    if (!attempt.greeted && !greet(attempt)) return false;
    return answered(attempt);
  });
}

bool SendRecv::begin(Attempt& attempt) {
  const Communicator& communicator = *attempt.communicator;
  std::string why;
  attempt.over_tcp = !is_own_address(communicator.peer_ip());
  if (!attempt.over_tcp) {
    try {
      attempt.socket = connect_unix(communicator.peer_core(), &why);
    } catch (const Error& error) {
      why = error.what();
    }
    // A process of this machine that sees another claim folder, such as one in a container, is met over TCP.
    attempt.over_tcp = !attempt.socket && !network_.bind.empty();
  }
  if (attempt.over_tcp) {
    attempt.socket = begin_connect_tcp(communicator.peer_ip(), network_.port + communicator.peer_core(), &why);
  }
  if (!attempt.socket) drop(attempt, why);
  return static_cast<bool>(attempt.socket);
}

bool SendRecv::greet(Attempt& attempt) {
  if (attempt.over_tcp) {
    pollfd polled{attempt.socket.get(), POLLOUT, 0};
    if (::poll(&polled, 1, 0) == 0) return false;
    if (const int error = socket_error(attempt.socket.get())) {
      drop(attempt, std::strerror(error));
      return false;
    }
    tune_data_socket(attempt.socket.get());
  } else if (!is_same_user(attempt.socket.get())) {
    drop(attempt, "another user's process listens there");
    return false;
  }
  UniqueFd ring;
  if (!attempt.over_tcp) {
    attempt.ring = SharedRing::create(&ring);
    if (!attempt.ring) {
      drop(attempt, nxl::detail::concat("no shared memory: ", std::strerror(errno)));
      return false;
    }
  }
  Greeting greeting{
      {}, kVersion, attempt.communicator->core(), attempt.communicator->peer_core(), attempt.ring ? 1u : 0u};
  std::memcpy(greeting.magic, kMagic, sizeof(kMagic));
  const auto bytes = std::as_bytes(std::span(&greeting, 1));
  // An empty socket takes so few bytes whole.
  if (send_with_fd(attempt.socket.get(), bytes, ring.get()) != static_cast<ssize_t>(bytes.size())) {
    drop(attempt, nxl::detail::concat("greeting: ", std::strerror(errno)));
    return false;
  }
  attempt.greeted = true;
  return true;
}

bool SendRecv::answered(Attempt& attempt) {
  char answer = 0;
  const ssize_t got = ::recv(attempt.socket.get(), &answer, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (got != 1 || answer != kWelcome) {
    drop(attempt, "the peer let the connection go");
    return false;
  }
  log_parts(LogLevel::kInfo, attempt.communicator->label(), " is connected, ", attempt.ring ? "shared memory" : "TCP");
  attempt.communicator->connected(std::move(attempt.socket), std::move(attempt.ring));
  return true;
}

void SendRecv::let_in(int core, int listener, bool tcp) {
  const auto found = cores_.find(core);
  if (found == cores_.end() || !found->second.listener) return;
  if (listener != (tcp ? found->second.listener->tcp_fd() : found->second.listener->unix_fd())) return;
  for (;;) {
    ForkClosedFd socket = fork_closed(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (visitors_.size() >= kMostVisitors || (!tcp && !is_same_user(socket.get()))) continue;
    auto visitor = std::make_unique<Visitor>();
    if (tcp) {
      tune_data_socket(socket.get());
      visitor->ip = address_of_peer(socket.get());
    }
    visitor->socket = std::move(socket);
    visitor->core = core;
    visitor->deadline = Clock::now() + kGreetingTime;
    visitors_.push_back(std::move(visitor));
  }
}

bool SendRecv::hear(Visitor& visitor) {
  const size_t have = visitor.bytes.size();
  if (have == sizeof(Greeting)) return false;  // it ended, or speaks out of turn
  visitor.bytes.resize(sizeof(Greeting));
  const ssize_t got = receive_with_fd(visitor.socket.get(), std::span(visitor.bytes).subspan(have), &visitor.ring);
  visitor.bytes.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (got == 0) return false;
  if (visitor.bytes.size() < sizeof(Greeting)) return true;
  Greeting greeting;
  std::memcpy(&greeting, visitor.bytes.data(), sizeof(greeting));
  if (std::memcmp(greeting.magic, kMagic, sizeof(kMagic)) != 0 || greeting.version != kVersion ||
      greeting.to_core != visitor.core || (greeting.ring != 0) != static_cast<bool>(visitor.ring)) {
    log_parts(LogLevel::kWarning, "send/receive of core ", visitor.core,
              ": a connection with a foreign greeting is dropped");
    return false;
  }
  visitor.greeting = greeting;
  return true;
}

bool SendRecv::is_for(const Visitor& visitor, const Communicator& communicator) const {
  if (communicator.sends() || communicator.state() != Communicator::State::kWaiting ||
      communicator.peer_core() != visitor.greeting->from_core) {
    return false;
  }
  const bool local = is_own_address(communicator.peer_ip());
  return visitor.ip.empty() || is_own_address(visitor.ip) ? local : visitor.ip == communicator.peer_ip();
}

bool SendRecv::seat(Visitor& visitor) {
  if (!visitor.greeting) return false;
  const auto core = cores_.find(visitor.core);
  if (core == cores_.end()) return false;
  for (const CommunicatorPtr& communicator : core->second.communicators) {
    if (!is_for(visitor, *communicator)) continue;
    std::unique_ptr<SharedRing> ring;
    std::string why;
    if (visitor.ring) ring = SharedRing::map(visitor.ring.get(), &why);
    if (visitor.ring && !ring) {
      log_parts(LogLevel::kWarning, communicator->label(), ": ", why);
      return true;
    }
    if (::send(visitor.socket.get(), &kWelcome, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return true;
    log_parts(LogLevel::kInfo, communicator->label(), " is connected, ", ring ? "shared memory" : "TCP");
    communicator->connected(std::move(visitor.socket), std::move(ring));
    return true;
  }
  return false;
}

}  // namespace nxl::host
