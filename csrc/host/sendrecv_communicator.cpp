// SPDX-License-Identifier: Apache-2.0
// Frames, the ring, and the life of a message.
#include "host/sendrecv_communicator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "host/log.h"

namespace nxl::host {
namespace {

constexpr size_t kRingBytes = size_t{SharedRing::kSlots} * SharedRing::kSlotBytes;
constexpr int kFramesPerTurn = 64;  // of one communicator, before the others have theirs

std::byte* map_ring(int fd) {
  void* base = mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

}  // namespace

std::unique_ptr<SharedRing> SharedRing::create(UniqueFd* fd) {
  fd->reset(memfd_create("nrt-sendrecv", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!*fd || ftruncate(fd->get(), static_cast<off_t>(kRingBytes)) != 0 ||
      fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return nullptr;
  }
  std::byte* base = map_ring(fd->get());
  return base == nullptr ? nullptr : std::unique_ptr<SharedRing>(new SharedRing(base));
}

std::unique_ptr<SharedRing> SharedRing::map(int fd, std::string* why) {
  // A file that can be cut would end this process with SIGBUS.
  struct stat file {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) != 0 ||
      file.st_size != static_cast<off_t>(kRingBytes)) {
    *why = "the ring that came with it is no sealed memfd of " + std::to_string(kRingBytes) + " bytes";
    return nullptr;
  }
  std::byte* base = map_ring(fd);
  if (base != nullptr) return std::unique_ptr<SharedRing>(new SharedRing(base));
  *why = std::string("mmap of the ring: ") + std::strerror(errno);
  return nullptr;
}

SharedRing::~SharedRing() { munmap(base_, kRingBytes); }

std::string Communicator::label() const {
  return nxl::detail::concat(sends_ ? "send communicator of core " : "receive communicator of core ", core_,
                             sends_ ? " to core " : " from core ", peer_core_, " at ", peer_ip_);
}

void Communicator::connected(ForkClosedFd socket, std::unique_ptr<SharedRing> ring) {
  socket_ = std::move(socket);
  ring_ = std::move(ring);
  state_ = State::kConnected;
  if (!sends_) return;
  for (uint32_t i = 0; i < SharedRing::kSlots; ++i) free_slots_.push_back(i);
}

void Communicator::finish(SendRecvRequest& request, NRT_STATUS status, uint64_t size) {
  request.finished = true;
  request.status = status;
  request.size = size;
  if (sends_ || status != NRT_SUCCESS) request.view = {};
  if (status != NRT_SUCCESS) request.held.clear();  // a message that broke off has nothing to flush
}

void Communicator::fail(const std::string& why) {
  if (state_ == State::kBroken) return;
  log_parts(LogLevel::kWarning, label(), ": ", why);
  state_ = State::kBroken;
  socket_.reset();
  ring_.reset();
  out_.clear();
  out_at_ = 0;
  payload_left_ = 0;
  for (auto* queue : {&awaiting_, &posted_}) {
    for (const SendRecvRequestPtr& request : *queue) finish(*request, NRT_NETWORK_PROXY_FAILURE, 0);
    queue->clear();
  }
}

void Communicator::abandon() {
  state_ = State::kBroken;
  socket_.reset();
  ring_.reset();
}

void Communicator::post(const SendRecvRequestPtr& request) {
  ++pending_;
  posted_.push_back(request);
  if (!sends_) put(FrameType::kReady, 0, request->view.bytes);
}

void Communicator::put(FrameType type, uint32_t slot, uint64_t value) {
  const Frame frame{type, slot, value};
  const auto bytes = std::as_bytes(std::span(&frame, 1));
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

bool Communicator::can_begin() const {
  return sends_ && state_ == State::kConnected && !moving_ && !stuck_ && !posted_.empty() && !ready_.empty() &&
         payload_left_ == 0;
}

void Communicator::begin(NRT_STATUS injected) {
  SendRecvRequest& request = *posted_.front();
  request.moved_at = SendRecvClock::now();
  const uint64_t bytes = request.view.bytes;
  if (injected == NRT_TIMEOUT) {
    stuck_ = true;
    return;
  }
  if (bytes > ready_.front() || (injected != NRT_SUCCESS && injected != NRT_INVALID)) {
    const bool oversize = bytes > ready_.front();
    if (oversize) {
      log_parts(LogLevel::kError, label(), ": a send of ", bytes, " bytes met a receive of ", ready_.front());
    }
    put(oversize ? FrameType::kOversize : FrameType::kAbort, 0, oversize ? bytes : static_cast<uint64_t>(injected));
    finish(request, oversize ? NRT_INVALID : injected, 0);
    posted_.pop_front();
    ready_.pop_front();
    return;
  }
  ready_.pop_front();
  total_ = bytes - (injected == NRT_INVALID && bytes != 0 ? 1 : 0);
  moved_ = 0;
  moving_ = true;
  put(FrameType::kData, 0, total_);
  if (total_ == 0) sent_whole();
}

bool Communicator::fill() {
  if (!sends_ || !moving_ || payload_left_ != 0) return false;
  SendRecvRequest& request = *posted_.front();
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(total_ - moved_, SharedRing::kSlotBytes));
  const std::byte* from = request.view.address + moved_;
  if (ring_) {
    if (free_slots_.empty()) return false;
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    std::memcpy(ring_->slot(slot), from, bytes);
    put(FrameType::kChunk, slot, bytes);
  } else {
    put(FrameType::kChunk, 0, bytes);
    payload_ = from;
    payload_left_ = bytes;
  }
  moved_ += bytes;
  request.moved_at = SendRecvClock::now();
  if (moved_ == total_) sent_whole();
  return true;
}

// The acknowledgement may come as soon as the last frame is out.
void Communicator::sent_whole() {
  moving_ = false;
  awaiting_.push_back(std::move(posted_.front()));
  posted_.pop_front();
}

bool Communicator::write() {
  if (!wants_to_write()) return false;
  iovec parts[2] = {{out_.data() + out_at_, out_.size() - out_at_},
                    {const_cast<std::byte*>(payload_), static_cast<size_t>(payload_left_)}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = payload_left_ != 0 ? 2 : 1;
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
    const int error = errno;
    // What the other end said before it went still counts.
    while (state_ == State::kConnected && read()) {
    }
    fail(nxl::detail::concat("the other end is gone: ", std::strerror(error)));
    return false;
  }
  const size_t frames = std::min<size_t>(static_cast<size_t>(sent), out_.size() - out_at_);
  out_at_ += frames;
  if (out_at_ == out_.size()) out_.clear(), out_at_ = 0;
  const uint64_t payload = static_cast<uint64_t>(sent) - frames;
  payload_ += payload;
  payload_left_ -= payload;
  return sent > 0;
}

bool Communicator::read() {
  if (incoming_left_ != 0) return read_payload();
  const size_t have = in_.size();
  in_.resize(sizeof(Frame));
  const ssize_t got = ::recv(socket_.get(), in_.data() + have, sizeof(Frame) - have, MSG_DONTWAIT);
  in_.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (got <= 0) {
    fail(got == 0 ? "the other end is gone" : nxl::detail::concat("recv: ", std::strerror(errno)));
    return false;
  }
  if (in_.size() < sizeof(Frame)) return true;
  Frame frame;
  std::memcpy(&frame, in_.data(), sizeof(frame));
  in_.clear();
  take(frame);
  return true;
}

bool Communicator::read_payload() {
  const std::span<std::byte> target = landing(incoming_left_);
  const ssize_t got = ::recv(socket_.get(), target.data(), target.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (got <= 0) {
    fail("the other end is gone");
    return false;
  }
  incoming_left_ -= static_cast<uint64_t>(got);
  landed(static_cast<uint64_t>(got));
  return true;
}

void Communicator::take(const Frame& frame) {
  try {
    sends_ ? take_at_sender(frame) : take_at_receiver(frame);
  } catch (const Error& error) {
    fail(nxl::detail::concat("the other end broke the protocol: ", error.what()));
  }
}

void Communicator::take_at_sender(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kReady:
      ready_.push_back(frame.value);
      return;
    case FrameType::kCredit:
      NXL_CHECK(frame.slot < SharedRing::kSlots && std::ranges::count(free_slots_, frame.slot) == 0, kInvalid,
                "credit for slot ", frame.slot);
      free_slots_.push_back(frame.slot);
      return;
    case FrameType::kDone: {
      NXL_CHECK(!awaiting_.empty(), kInvalid, "an acknowledgement without a message");
      SendRecvRequest& request = *awaiting_.front();
      finish(request, NRT_SUCCESS, request.view.bytes);
      awaiting_.pop_front();
      return;
    }
    default:
      throw_error(ErrorKind::kInvalid,
                  nxl::detail::concat("frame ", static_cast<uint32_t>(frame.type), " at the sender"));
  }
}

void Communicator::take_at_receiver(const Frame& frame) {
  NXL_CHECK(!posted_.empty(), kInvalid, "a message without a receive");
  SendRecvRequest& request = *posted_.front();
  switch (frame.type) {
    case FrameType::kData:
      NXL_CHECK(!moving_ && frame.value <= request.view.bytes, kInvalid, "a message of ", frame.value,
                " bytes for a receive of ", request.view.bytes);
      return start_receive(frame.value);
    case FrameType::kChunk:
      NXL_CHECK(moving_ && frame.value != 0 && frame.value <= SharedRing::kSlotBytes &&
                    frame.value <= total_ - moved_ && frame.slot < SharedRing::kSlots,
                kInvalid, "a chunk of ", frame.value, " bytes in slot ", frame.slot, ", ", total_ - moved_,
                " are missing");
      if (!ring_) {
        incoming_left_ = frame.value;
        return;
      }
      place({ring_->slot(frame.slot), frame.value});
      return put(FrameType::kCredit, frame.slot, 0);
    case FrameType::kOversize:
    case FrameType::kAbort: {
      NXL_CHECK(!moving_, kInvalid, "a message that ends in its middle");
      const bool oversize = frame.type == FrameType::kOversize;
      NXL_CHECK(oversize || (frame.value != NRT_SUCCESS && frame.value <= NRT_NETWORK_PROXY_FAILURE), kInvalid,
                "status ", frame.value);
      if (oversize) {
        log_parts(LogLevel::kError, label(), ": a send of ", frame.value, " bytes met a receive of ",
                  request.view.bytes);
      }
      finish(request, oversize ? NRT_INVALID : static_cast<NRT_STATUS>(frame.value), 0);
      posted_.pop_front();
      return;
    }
    default:
      throw_error(ErrorKind::kInvalid,
                  nxl::detail::concat("frame ", static_cast<uint32_t>(frame.type), " at the receiver"));
  }
}

void Communicator::start_receive(uint64_t bytes) {
  SendRecvRequest& request = *posted_.front();
  moving_ = true;
  total_ = bytes;
  moved_ = 0;
  const uint64_t held = std::min(bytes, kHeldBytes);
  request.held.resize(held);
  if (held != 0) std::memset(request.view.address + bytes - held, static_cast<int>(kUnflushed), held);
  if (bytes == 0) landed(0);
}

// Where the next bytes of the message belong, at most `most` of them.
std::span<std::byte> Communicator::landing(uint64_t most) {
  SendRecvRequest& request = *posted_.front();
  const uint64_t open = total_ - request.held.size();
  if (moved_ < open) return {request.view.address + moved_, std::min(most, open - moved_)};
  return std::span(request.held).subspan(moved_ - open, std::min(most, total_ - moved_));
}

void Communicator::landed(uint64_t bytes) {
  SendRecvRequest& request = *posted_.front();
  moved_ += bytes;
  request.moved_at = SendRecvClock::now();
  if (moved_ != total_) return;
  moving_ = false;
  finish(request, NRT_SUCCESS, total_);
  posted_.pop_front();
  put(FrameType::kDone, 0, 0);
}

void Communicator::place(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> target = landing(bytes.size());
    std::memcpy(target.data(), bytes.data(), target.size());
    bytes = bytes.subspan(target.size());
    landed(target.size());
  }
}

bool Communicator::advance() {
  bool any = false;
  for (int turn = 0; turn < kFramesPerTurn && state_ == State::kConnected; ++turn) {
    bool moved = read();
    if (state_ == State::kConnected && fill()) moved = true;
    if (state_ == State::kConnected && write()) moved = true;
    if (!moved) break;
    any = true;
  }
  return any;
}

}  // namespace nxl::host
