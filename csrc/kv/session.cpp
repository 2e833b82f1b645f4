// SPDX-License-Identifier: Apache-2.0
// Sending, receiving, keep-alive and the end of a control connection; session_handshake.cpp has its beginning.
#include "kv/session.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

namespace nxl::kv {
namespace {

constexpr size_t kMaxQueuedBytes = size_t{256} << 20;  // a peer that takes nothing any more
constexpr size_t kMaxDescriptorsWaiting = 1024;
constexpr std::chrono::milliseconds kTick{250};

// Texts from a peer go into logs and errors: one line, nothing that steers a terminal.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return text;
}

}  // namespace

Session::Session(EventLoop& loop, SessionHost& host, SessionConfig config, GuardedFd socket, bool initiator,
                 bool unix_socket, std::string peer_address)
    : loop_(loop),
      host_(host),
      config_(std::move(config)),
      socket_(std::move(socket)),
      initiator_(initiator),
      unix_socket_(unix_socket),
      peer_address_(std::move(peer_address)),
      state_(initiator ? State::kConnecting : State::kHello) {
  heard_at_ = ticked_at_ = sent_at_ = std::chrono::steady_clock::now();
  handshake_until_ = heard_at_ + config_.handshake;
}

Session::~Session() {
  if (socket_) loop_.unwatch(socket_.get());
}

void Session::start() {
  const std::weak_ptr<Session> weak = weak_from_this();
  armed_writable_ = initiator_;
  loop_.watch(socket_.get(), EPOLLIN | EPOLLRDHUP | (initiator_ ? EPOLLOUT : 0u), [weak](uint32_t events) {
    if (const auto self = weak.lock()) self->on_events(events);
  });
  timer_ = loop_.at(std::chrono::steady_clock::now() + kTick, [weak] {
    if (const auto self = weak.lock()) self->tick();
  });
}

std::string Session::remote_host() const { return unix_socket_ ? "" : kv::remote_host(socket_.get()); }

std::string Session::label() const {
  std::ostringstream out;
  out << (name_.empty() ? peer_address_ : printable(name_)) << " (session " << std::hex << number_ << ")";
  return out.str();
}

void Session::send(FrameType type, Body body) { send_with({type, std::move(body), {}, nullptr}); }

void Session::send_with(Outgoing outgoing) {
  const std::lock_guard lock(out_mutex_);
  if (out_closed_) return;
  out_bytes_ += outgoing.body.size() + kFrameHeaderBytes;
  out_.push_back(std::move(outgoing));
  if (!std::exchange(flush_called_, true)) {
    loop_.call([weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self && self->state_ != State::kConnecting && self->state_ != State::kClosed) self->flush();
    });
  }
}

size_t Session::queued_bytes() const {
  const std::lock_guard lock(out_mutex_);
  return out_bytes_;
}

void Session::on_events(uint32_t events) {
  const auto self = shared_from_this();
  if (state_ == State::kConnecting) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    if (const int error = connect_error(socket_.get()); error != 0) {
      lose(peer_address_ + ": " + std::strerror(error));
      return;
    }
    try {
      if (unix_socket_) {
        const PeerCredentials peer = peer_credentials(socket_.get());
        NXL_CHECK(peer.uid == ::geteuid(), kInvalid, peer_address_, " is served by user ", peer.uid,
                  ", this process is of user ", ::geteuid());
        pid_ = peer.pid;
      }
      state_ = State::kHello;
      random_bytes(std::as_writable_bytes(std::span(transcript_.connector_nonce)));
      HelloMessage hello{config_.name, config_.incarnation, transcript_.connector_nonce, !config_.key.empty(), {}};
      send(FrameType::kHello, hello.encode());
      if (!flush()) return;
    } catch (const Error& error) {
      refuse(error.what());
      return;
    }
  }
  if ((events & EPOLLOUT) != 0 && !flush()) return;
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) receive();
}

void Session::receive() {
  std::array<std::byte, 64 << 10> buffer;
  // Bounded, so that one busy peer does not starve the others; epoll reports what is left again.
  for (int round = 0; round < 16 && state_ != State::kClosed; ++round) {
    std::vector<UniqueFd> fds;
    const ssize_t got = receive_with_descriptors(socket_.get(), buffer, fds);
    for (UniqueFd& fd : fds) descriptors_.push_back(std::make_shared<const UniqueFd>(std::move(fd)));
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      const std::string how = got == 0 ? "the peer closed the connection" : std::strerror(errno);
      peer_closed_ = true;
      loop_.unwatch(socket_.get());  // it would be reported until closed
      if (state_ == State::kLost) {
        host_.on_drained(*this);
      } else {
        lose(how);
      }
      return;
    }
    heard_at_ = std::chrono::steady_clock::now();
    try {
      NXL_CHECK(descriptors_.size() <= kMaxDescriptorsWaiting, kInvalid, "more than ", kMaxDescriptorsWaiting,
                " descriptors without a frame");
      parser_.append(std::span(buffer).first(static_cast<size_t>(got)));
      while (state_ != State::kClosed) {
        auto frame = parser_.next();
        if (!frame) break;
        handle(std::move(*frame));
      }
    } catch (const Error& error) {
      // A protocol error: the stream cannot be trusted beyond this point.
      if (state_ == State::kLost) {
        close();
      } else {
        refuse(error.what());
      }
      return;
    }
  }
}

void Session::authenticate(Frame& frame) {
  if (!authenticated_) {
    NXL_CHECK(frame.header.flags == 0, kInvalid, "a frame carries a code in a session without a key");
    return;
  }
  if (frame.header.type == FrameType::kRefuse && frame.header.flags == 0) return;  // can only end the session
  NXL_CHECK((frame.header.flags & kFlagAuthenticated) != 0 && frame.body.size() >= kFrameCodeBytes, kInvalid,
            frame_name(frame.header.type), " frame without its code");
  const size_t size = frame.body.size() - kFrameCodeBytes;
  const auto expected = frame_code(frame_secret_, !initiator_, static_cast<uint8_t>(frame.header.type),
                                   frame.header.session, frame.header.sequence, std::span(frame.body).first(size));
  const std::span given(reinterpret_cast<const uint8_t*>(frame.body.data() + size), kFrameCodeBytes);
  NXL_CHECK(equal_in_constant_time(expected, given), kInvalid, "the code of a ", frame_name(frame.header.type),
            " frame does not fit");
  frame.body.resize(size);
}

void Session::handle(Frame frame) {
  const FrameHeader& header = frame.header;
  NXL_CHECK(unix_socket_ || header.descriptors == 0, kInvalid, "descriptors over TCP");
  authenticate(frame);
  if (header.type == FrameType::kRefuse) {
    refused_ = true;
    const ReasonMessage reason = ReasonMessage::decode(frame.body);
    lose("refused by the peer: " + printable(reason.text));
    return;
  }
  NXL_CHECK(header.session == number_ || header.type == FrameType::kChallenge, kInvalid, "a frame of session ",
            header.session, ", this is session ", number_);
  if (header.sequence <= received_sequence_) return;  // sent twice
  received_sequence_ = header.sequence;
  if (state_ == State::kLost) {
    // Only what tells that our own requests have come to rest still counts.
    if (header.type == FrameType::kWriteStatus) host_.on_frame(*this, frame);
    return;
  }
  switch (header.type) {
    case FrameType::kHello:
      return on_hello(frame);
    case FrameType::kChallenge:
      return on_challenge(frame);
    case FrameType::kProof:
      return on_proof(frame);
    case FrameType::kMetadata:
      return on_metadata(frame);
    case FrameType::kRegions:
      return on_regions_frame(frame);
    case FrameType::kLayout:
      return on_layout_frame(frame);
    case FrameType::kReady:
      NXL_CHECK(state_ == State::kMetadata, kInvalid, "READY out of turn");
      peer_ready_ = true;
      return maybe_up();
    case FrameType::kPing:
      NXL_CHECK(state_ >= State::kMetadata, kInvalid, "PING before the handshake");
      return send(FrameType::kPong, {});
    case FrameType::kPong:
      return;
    case FrameType::kGoAway: {
      const ReasonMessage reason = ReasonMessage::decode(frame.body);
      final_ = reason.final;
      return lose("the peer ended the session: " + printable(reason.text));
    }
    default:
      NXL_CHECK(state_ == State::kUp, kInvalid, frame_name(header.type), " before the session is up");
      host_.on_frame(*this, frame);
  }
}

void Session::encode_next() {
  Outgoing next = std::move(out_.front());
  out_.pop_front();
  out_bytes_ -= next.body.size() + kFrameHeaderBytes;
  FrameHeader header;
  header.type = next.type;
  header.session = number_;
  header.sequence = ++sent_sequence_;
  header.descriptors = static_cast<uint32_t>(next.fds.size());
  if (authenticated_) {
    const auto code = frame_code(frame_secret_, initiator_, static_cast<uint8_t>(header.type), header.session,
                                 header.sequence, next.body);
    const auto bytes = std::as_bytes(std::span(code));
    next.body.insert(next.body.end(), bytes.begin(), bytes.end());
    header.flags = kFlagAuthenticated;
  }
  writing_ = encode_frame(header, next.body);
  written_ = 0;
  writing_fds_ = std::move(next.fds);
  writing_keep_ = std::move(next.keep);
  const FrameFate fate = config_.filter ? config_.filter(next.type) : FrameFate::kPass;
  if (fate == FrameFate::kDrop) {
    writing_.clear();
  } else if (fate == FrameFate::kRepeat && writing_fds_.empty()) {
    const size_t size = writing_.size();
    writing_.resize(size * 2);
    std::copy_n(writing_.begin(), size, writing_.begin() + static_cast<ptrdiff_t>(size));
  }
}

bool Session::flush() {
  if (!socket_) return false;
  while (true) {
    if (written_ == writing_.size()) {
      writing_.clear();
      written_ = 0;
      writing_keep_.reset();
      const std::lock_guard lock(out_mutex_);
      flush_called_ = false;
      if (out_.empty()) break;
      encode_next();
      continue;
    }
    const ssize_t sent = send_with_descriptors(socket_.get(), std::span(writing_).subspan(written_),
                                               written_ == 0 ? writing_fds_ : std::vector<int>{});
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      arm(true);
      if (state_ != State::kLost && queued_bytes() > kMaxQueuedBytes) {
        lose("the peer takes no frames: " + std::to_string(queued_bytes()) + " bytes are waiting");
        return false;
      }
      return true;
    }
    if (sent < 0) {
      const std::string why = std::strerror(errno);
      // The peer's last words may still be in the socket: read them before the end is reported.
      if (state_ == State::kLost) {
        writing_.clear();
        const std::lock_guard lock(out_mutex_);
        out_.clear();
        out_bytes_ = 0;
        break;
      }
      receive();
      lose(why);
      return false;
    }
    sent_at_ = std::chrono::steady_clock::now();
    written_ += static_cast<size_t>(sent);
  }
  arm(false);
  if (state_ == State::kLost && !std::exchange(shut_write_, true)) ::shutdown(socket_.get(), SHUT_WR);
  return true;
}

void Session::arm(bool writable) {
  if (std::exchange(armed_writable_, writable) == writable || peer_closed_) return;
  loop_.change(socket_.get(), EPOLLIN | EPOLLRDHUP | (writable ? EPOLLOUT : 0u));
}

void Session::tick() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();
  const Time now = std::chrono::steady_clock::now();
  timer_ = loop_.at(now + kTick, [weak = weak_from_this()] {
    if (const auto session = weak.lock()) session->tick();
  });
  // When this process itself stood still, silence says nothing about the peer.
  const bool stood_still = now - ticked_at_ > kTick + std::max(config_.keep_alive, kTick * 2);
  if (stood_still) {
    heard_at_ = std::max(heard_at_, now - config_.suspect_after);
    handshake_until_ = std::max(handshake_until_, now + kTick * 2);
  }
  ticked_at_ = now;
  if (state_ < State::kUp) {
    if (now >= handshake_until_) {
      const bool early = state_ < State::kMetadata;
      lose(detail::concat("the handshake took longer than ", config_.handshake.count(), " ms, ",
                          early ? "the peer has proved nothing" : "its metadata did not come whole"));
      close();
    }
    return;
  }
  if (state_ != State::kUp) return;
  const auto silence = now - heard_at_;
  if (silence >= config_.down_after) {
    end(detail::concat("nothing was heard from the peer for ",
                       std::chrono::duration_cast<std::chrono::milliseconds>(silence).count(), " ms"),
        false);
    return;
  }
  const bool suspect = silence >= config_.suspect_after;
  if (suspect != std::exchange(suspect_, suspect)) host_.on_heard(*this, suspect);
  const bool quiet = now - sent_at_ >= config_.keep_alive || silence >= config_.keep_alive;
  if (quiet && queued_bytes() == 0) send(FrameType::kPing, {});
  host_.on_tick(*this);
}

void Session::refuse(const std::string& why) {
  if (state_ >= State::kLost) return;
  const bool handshaking = state_ < State::kUp;
  refused_ = handshaking;
  send(FrameType::kRefuse, ReasonMessage{why, false}.encode());
  lose(why);
}

void Session::end(const std::string& why, bool final) {
  if (state_ >= State::kLost) return;
  send(FrameType::kGoAway, ReasonMessage{why, final}.encode());
  lose(why);
}

void Session::lose(const std::string& why) {
  if (state_ >= State::kLost) return;
  const auto self = shared_from_this();
  const bool connecting = state_ == State::kConnecting;
  state_ = State::kLost;
  why_ = why;
  {
    const std::lock_guard lock(out_mutex_);
    out_closed_ = true;
  }
  if (connecting) peer_closed_ = true;
  if (!peer_closed_) flush();
  host_.on_lost(*this);
}

void Session::close() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();
  state_ = State::kClosed;
  loop_.cancel(timer_);
  loop_.unwatch(socket_.get());
  socket_.reset();
  {
    const std::lock_guard lock(out_mutex_);
    out_closed_ = true;
    out_.clear();
  }
  descriptors_.clear();
  host_.on_closed(*this);
}

}  // namespace nxl::kv
