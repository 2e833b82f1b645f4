// SPDX-License-Identifier: Apache-2.0
// The serving thread: connections are proved, their requests checked, and the bytes sent from place.
#include "kv/providers/tcp_data_server.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/log.h"
#include "kv/providers/io_vectors.h"
#include "kv/providers/run_cursor.h"
#include "kv/providers/tcp_frames.h"
#include "kv/socket.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kSendsPerTurn = 4;  // of one connection, before the others have theirs
constexpr milliseconds kAcceptPause(100);

struct Request {
  DataHeader header;
  uint64_t word = 0;  // of kWord
  ReadRequest read;
  std::vector<RegionHold> regions;  // until the request is over
  std::optional<RunCursor> cursor;  // set once it is being sent
  bool staged = false;              // small pieces are sent from a copy, together
  RequestStatus outcome;

  Request() = default;
  Request(const Request&) = delete;  // the cursor refers to the runs
  Request& operator=(const Request&) = delete;
};

RequestStatus refusal(int code, const std::string& text) { return {code, Cause::kRefused, 0, text}; }

bool still_registered(const Request& request, const RegionMap& table) {
  return std::ranges::all_of(request.regions, [&](const RegionHold& region) { return table.contains(region->index); });
}

// Fills `regions`; a status that is not good says why the request may not be served.
// Its owner may take a region away until it is held, so a held one is looked up once more: from then on it is BUSY.
RequestStatus resolve(Request& request, const ProviderHost& host) {
  const std::shared_ptr<const RegionMap> table = host.regions();
  for (const RequestedRegion& wanted : request.read.regions) {
    const auto found = table->find(wanted.index);
    if (found == table->end()) {
      return refusal(NRT_INVALID_HANDLE, detail::concat("region ", wanted.index, " is not registered"));
    }
    const Region& region = *found->second;
    if (!equal_in_constant_time({reinterpret_cast<const uint8_t*>(wanted.key.data()), sizeof(Key)},
                                {reinterpret_cast<const uint8_t*>(region.key.data()), sizeof(Key)})) {
      return refusal(NRT_INVALID, detail::concat("wrong key for region ", wanted.index));
    }
    if (!region.description.readable) {
      return refusal(NRT_INVALID, detail::concat("region ", wanted.index, " is not to be read"));
    }
    request.regions.emplace_back(found->second);
  }
  if (!still_registered(request, *host.regions())) {
    return refusal(NRT_INVALID_HANDLE, "a region was deregistered when the request came");
  }
  for (size_t i = 0; i < request.read.runs.size(); ++i) {
    const Run& run = request.read.runs[i];
    const uint64_t bytes = request.regions[run.source_region]->description.bytes;
    if (!run_within({.source_offset = run.source_offset,
                     .bytes = run.bytes,
                     .source_stride = run.source_stride,
                     .count = run.count},
                    bytes, UINT64_MAX)) {
      return refusal(NRT_INVALID, detail::concat("run ", i, " leaves region ",
                                                 request.regions[run.source_region]->index, " of ", bytes, " bytes"));
    }
  }
  return {};
}

}  // namespace

class TcpDataServer::Connection {
 public:
  Connection(TcpDataServer& server, GuardedFd fd)
      : server_(server), fd_(std::move(fd)), deadline_(Clock::now() + server.limits_.proof_time) {}
  ~Connection() {
    for (const auto& request : requests_) server_.waiting_runs_ -= request->read.runs.size();
  }

  int fd() const { return fd_.get(); }
  bool proved() const { return state_ == State::kProved; }
  bool finished() const { return finished_; }
  uint64_t session() const { return session_; }
  size_t requests() const { return requests_.size(); }
  bool wants_to_send() const { return !out_.empty() || !control_.empty() || !requests_.empty(); }
  std::optional<Deadline> deadline() const {
    return proved() && !wants_to_send() ? std::nullopt : std::optional(deadline_);
  }

  void finish() {
    finished_ = true;
    ::shutdown(fd_.get(), SHUT_RDWR);
  }

  // Takes in what has arrived. Throws Error(kInvalid) for the first frame that breaks a rule.
  void receive() {
    while (!finished_ && server_.may_read(*this)) {
      const size_t have = in_.size();
      in_.resize(needed_);
      const ssize_t got = ::recv(fd_.get(), in_.data() + have, needed_ - have, MSG_DONTWAIT);
      in_.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) return finish();
      if (in_.size() < needed_) continue;
      if (!header_) {
        header_ = decode_header(std::span(in_).first<kDataHeaderBytes>());
        check_expected(header_->type);
        needed_ += header_->body_bytes;
        if (header_->body_bytes != 0) continue;
      }
      const auto body = std::span(in_).subspan(kDataHeaderBytes);
      check_body(*header_, body);
      take(*header_, body);
      in_.clear();
      header_.reset();
      needed_ = kDataHeaderBytes;
    }
  }

  void send() {
    for (int turn = 0; turn < kSendsPerTurn && !finished_; ++turn) {
      if (out_.empty() && !next_output()) return;
      msghdr message{};
      message.msg_iov = out_.data();
      message.msg_iovlen = out_.count();
      const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (sent <= 0) return finish();
      out_.consume(static_cast<size_t>(sent));
      if (proved()) deadline_ = Clock::now() + server_.limits_.stall_time;
    }
  }

 private:
  enum class State { kNew, kChallenged, kProved };

  void check_expected(DataFrame type) const {
    const bool expected = state_ == State::kNew          ? type == DataFrame::kHello
                          : state_ == State::kChallenged ? type == DataFrame::kProof
                                                         : type == DataFrame::kRead || type == DataFrame::kWord;
    NXL_CHECK(expected, kInvalid, "unexpected data frame of type ", static_cast<int>(type));
  }

  void take(const DataHeader& header, std::span<const std::byte> body) {
    switch (header.type) {
      case DataFrame::kHello:
        return take_hello(body);
      case DataFrame::kProof:
        return take_proof(body);
      default:
        return take_request(header, body);
    }
  }

  void take_hello(std::span<const std::byte> body) {
    NXL_CHECK(body.size() == sizeof(session_) + sizeof(Nonce), kInvalid, "hello of ", body.size(), " bytes");
    std::memcpy(&session_, body.data(), sizeof(session_));
    Nonce reader, own;
    std::memcpy(reader.data(), body.data() + sizeof(session_), sizeof(reader));
    random_bytes(std::as_writable_bytes(std::span(own)));
    const auto found = server_.sessions_.find(session_);
    NXL_CHECK(found != server_.sessions_.end(), kInvalid, "hello for an unknown session");
    const auto& [secret, initiator] = found->second;
    expected_proof_ = data_proof(secret, session_, false, !initiator, reader, own);
    const Sha256Digest proof = data_proof(secret, session_, true, !initiator, reader, own);
    std::vector<std::byte> challenge(sizeof(own) + sizeof(proof));
    std::memcpy(challenge.data(), own.data(), sizeof(own));
    std::memcpy(challenge.data() + sizeof(own), proof.data(), sizeof(proof));
    control_ = encode_data_frame(DataFrame::kChallenge, 0, challenge);
    state_ = State::kChallenged;
  }

  void take_proof(std::span<const std::byte> body) {
    NXL_CHECK(equal_in_constant_time({reinterpret_cast<const uint8_t*>(body.data()), body.size()}, expected_proof_),
              kInvalid, "wrong proof");
    state_ = State::kProved;
    deadline_ = Clock::now() + server_.limits_.stall_time;
  }

  void take_request(const DataHeader& header, std::span<const std::byte> body) {
    NXL_CHECK(header.sequence == last_sequence_ + 1, kInvalid, "request ", header.sequence, " after request ",
              last_sequence_);
    last_sequence_ = header.sequence;
    auto request = std::make_unique<Request>();
    request->header = header;
    if (header.type == DataFrame::kWord) {
      NXL_CHECK(body.size() == sizeof(request->word), kInvalid, "word request of ", body.size(), " bytes");
      std::memcpy(&request->word, body.data(), sizeof(request->word));
    } else {
      request->read = decode_read(body);
    }
    if (!wants_to_send()) deadline_ = Clock::now() + server_.limits_.stall_time;
    server_.waiting_runs_ += request->read.runs.size();
    requests_.push_back(std::move(request));
  }

  // Fills out_ with the next frame; false when there is none.
  bool next_output() {
    if (!control_.empty()) {
      sending_ = std::exchange(control_, {});
      out_.add(sending_.data(), sending_.size());
      return true;
    }
    if (requests_.empty()) return false;
    Request& request = *requests_.front();
    if (!request.cursor) {
      if (request.header.type == DataFrame::kRead) request.outcome = resolve(request, server_.host_);
      request.cursor.emplace(request.outcome.code == 0 ? std::span<const Run>(request.read.runs)
                                                       : std::span<const Run>());
      request.staged = small_pieces(request.read.runs);
    }
    if (request.cursor->at_end()) {
      end_request(request);
    } else if (request.staged) {
      add_gathered(request);
    } else {
      add_chunk(request);
    }
    return true;
  }

  void add_chunk(Request& request) {
    const bool checksum = request.header.flags & kDataFlagChecksum;
    DataHeader header{DataFrame::kData, request.header.flags, request.header.sequence, 0, 0};
    out_.add(data_header_.data(), data_header_.size());
    while (!request.cursor->at_end() && !out_.full() && header.body_bytes < kDataChunkBytes) {
      const Run part = request.cursor->next(kDataChunkBytes - header.body_bytes, 1);
      const auto* base = static_cast<const std::byte*>(request.regions[part.source_region]->description.address);
      out_.add(base + part.source_offset, part.bytes);
      if (checksum) header.body_crc = crc32c({base + part.source_offset, part.bytes}, header.body_crc);
      header.body_bytes += static_cast<uint32_t>(part.bytes);
    }
    data_header_ = encode_header(header);
  }

  // A chunk of small pieces: header and bytes in one buffer.
  void add_gathered(Request& request) {
    sending_.resize(kDataHeaderBytes + kStagingBytes);
    std::byte* to = sending_.data() + kDataHeaderBytes;
    const std::byte* end = sending_.data() + sending_.size();
    while (!request.cursor->at_end() && to != end) {
      const Run part = request.cursor->next(static_cast<uint64_t>(end - to));
      const auto* from = static_cast<const std::byte*>(request.regions[part.source_region]->description.address);
      from += part.source_offset;
      for (uint32_t i = 0; i < part.count; ++i, from += part.source_stride, to += part.bytes) {
        std::memcpy(to, from, part.bytes);
      }
    }
    const auto body = std::span(sending_).first(static_cast<size_t>(to - sending_.data())).subspan(kDataHeaderBytes);
    DataHeader header{DataFrame::kData, request.header.flags, request.header.sequence,
                      static_cast<uint32_t>(body.size()), 0};
    if (request.header.flags & kDataFlagChecksum) header.body_crc = crc32c(body);
    std::ranges::copy(encode_header(header), sending_.begin());
    out_.add(sending_.data(), kDataHeaderBytes + body.size());
  }

  void end_request(Request& request) {
    if (request.header.type == DataFrame::kWord) {
      request.outcome.word = server_.host_.lease_word(request.word);
    } else if (request.outcome.code == 0 && !still_registered(request, *server_.host_.regions())) {
      request.outcome = refusal(NRT_INVALID_HANDLE, "a region was deregistered while it was read");
    }
    sending_ = encode_data_frame(DataFrame::kStatus, request.header.sequence, encode_status(request.outcome));
    out_.add(sending_.data(), sending_.size());
    server_.waiting_runs_ -= request.read.runs.size();
    requests_.pop_front();
  }

  TcpDataServer& server_;
  const GuardedFd fd_;
  State state_ = State::kNew;
  bool finished_ = false;
  Deadline deadline_;  // to prove, later to take something of what is waiting
  uint64_t session_ = 0;
  Sha256Digest expected_proof_{};
  uint64_t last_sequence_ = 0;

  std::vector<std::byte> in_;
  size_t needed_ = kDataHeaderBytes;
  std::optional<DataHeader> header_;

  std::deque<std::unique_ptr<Request>> requests_;
  std::vector<std::byte> control_;  // a frame that goes first
  std::vector<std::byte> sending_;  // what out_ refers to
  std::array<std::byte, kDataHeaderBytes> data_header_;
  IoVectors out_;
};

TcpDataServer::TcpDataServer(ProviderHost& host, GuardedFd listener, TcpServerLimits limits)
    : host_(host), listener_(std::move(listener)), limits_(limits), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  NXL_CHECK(wake_, kUnavailable, "tcp data server: eventfd: ", std::strerror(errno));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw_error(ErrorKind::kUnavailable, detail::concat("tcp data server: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TcpDataServer::~TcpDataServer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void TcpDataServer::add_session(uint64_t session, const Secret& secret, bool initiator) {
  std::lock_guard lock(mutex_);
  sessions_.insert_or_assign(session, Session{secret, initiator});
}

void TcpDataServer::remove_session(uint64_t session) {
  {
    std::lock_guard lock(mutex_);
    sessions_.erase(session);
    for (const auto& connection : connections_) {
      if (connection->session() == session) connection->finish();
    }
  }
  wake();
}

void TcpDataServer::wake() { eventfd_write(wake_.get(), 1); }

bool TcpDataServer::may_read(const Connection& connection) const {
  return connection.requests() == 0 ||
         (connection.requests() < kMaxRequestsAhead && waiting_runs_ < limits_.waiting_runs);
}

milliseconds TcpDataServer::until_next_deadline() const {
  const Deadline now = Clock::now();
  Deadline next = Deadline::max();
  for (const auto& connection : connections_) next = std::min(next, connection->deadline().value_or(next));
  if (accept_again_ > now) next = std::min(next, accept_again_);
  if (next == Deadline::max()) return milliseconds(-1);
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(next - now));
}

void TcpDataServer::accept_waiting() {
  for (;;) {
    GuardedFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) accept_again_ = Clock::now() + kAcceptPause;
      return;
    }
    const auto unproved = std::ranges::count_if(connections_, [](const auto& each) { return !each->proved(); });
    if (connections_.size() >= limits_.connections || unproved >= limits_.unproved) {
      NXL_LOG(kWarning, "kv tcp: connection dropped, ", connections_.size(), " are open and ", unproved,
              " have proved nothing yet");
      continue;
    }
    tune_tcp(fd.get());
    connections_.push_back(std::make_unique<Connection>(*this, std::move(fd)));
  }
}

void TcpDataServer::run() {
  pthread_setname_np(pthread_self(), "nxl-kv-data");
  std::vector<pollfd> polled;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    polled.clear();
    polled.push_back({wake_.get(), POLLIN, 0});
    polled.push_back({accept_again_ > Clock::now() ? -1 : listener_.get(), POLLIN, 0});
    for (const auto& connection : connections_) {
      const int events = (may_read(*connection) ? POLLIN : 0) | (connection->wants_to_send() ? POLLOUT : 0);
      polled.push_back({connection->fd(), static_cast<short>(events), 0});
    }
    const auto timeout = static_cast<int>(until_next_deadline().count());
    lock.unlock();
    ::poll(polled.data(), polled.size(), timeout);
    lock.lock();

    eventfd_t ignored;
    if (polled[0].revents != 0) eventfd_read(wake_.get(), &ignored);
    const Deadline now = Clock::now();
    for (size_t i = 2; i < polled.size(); ++i) {  // only this thread adds or removes connections
      Connection& connection = *connections_[i - 2];
      try {
        if (polled[i].revents & (POLLERR | POLLHUP | POLLNVAL)) connection.finish();
        if (polled[i].revents & POLLIN) connection.receive();
        if (!connection.finished()) connection.send();
        if (connection.deadline().value_or(Deadline::max()) <= now) connection.finish();
      } catch (const std::exception& error) {
        NXL_LOG(kWarning, "kv tcp: connection of ", remote_host(connection.fd()), " dropped: ", error.what());
        connection.finish();
      }
    }
    std::erase_if(connections_, [](const auto& connection) { return connection->finished(); });
    if (polled[1].revents != 0) accept_waiting();
  }
  connections_.clear();
}

}  // namespace nxl::kv
