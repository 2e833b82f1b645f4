// SPDX-License-Identifier: Apache-2.0
// Requests out and bytes in, both at once, so that neither end waits for the other.
#include "kv/providers/tcp_data_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>

#include "core/crc32c.h"
#include "core/error.h"
#include "kv/providers/io_vectors.h"
#include "kv/providers/run_copy.h"
#include "kv/providers/run_cursor.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook(20);        // between two looks at the stop flag while nothing arrives
constexpr size_t kRequestsInFlight = 2;  // the server begins the next one while the last bytes of one travel
constexpr uint64_t kRequestBytes = 8 << 20;

// What ended an exchange; thrown inside this file only.
struct Ended {
  CopyResult result;
};

[[noreturn]] void end(int code, Cause cause, const std::string& text) {
  throw Ended{{{code, "tcp: " + text}, cause, 0}};
}

void look(const Patience& patience) {
  if (patience.session_over->load(std::memory_order_acquire)) end(NRT_CLOSED, Cause::kPeerLost, "the session is over");
  if (patience.stop && patience.stop->load(std::memory_order_acquire)) end(NRT_FAILURE, Cause::kCancelled, "stopped");
  if (std::chrono::steady_clock::now() >= patience.deadline) end(NRT_TIMEOUT, Cause::kDeadline, "the deadline passed");
}

void wait(int fd, short events, const Patience& patience) {
  for (;;) {
    look(patience);
    const auto left = std::chrono::ceil<milliseconds>(patience.deadline - std::chrono::steady_clock::now());
    pollfd polled{fd, events, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::clamp(left, milliseconds(0), kLook).count()));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) end(NRT_FAILURE, Cause::kProvider, detail::concat("poll: ", std::strerror(errno)));
  }
}

// Bytes moved; 0 when the socket would block. The end of the stream and errors end the exchange.
size_t moved(ssize_t result, const char* call) {
  if (result > 0) return static_cast<size_t>(result);
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  if (result == 0) end(NRT_CLOSED, Cause::kPeerLost, "the peer closed the data connection");
  const bool lost = errno == ECONNRESET || errno == EPIPE || errno == ETIMEDOUT || errno == EHOSTUNREACH;
  end(lost ? NRT_CLOSED : NRT_FAILURE, lost ? Cause::kPeerLost : Cause::kProvider,
      detail::concat(call, ": ", std::strerror(errno)));
}

size_t send_some(int fd, std::span<const std::byte> bytes) {
  return moved(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT), "send");
}

void send_all(int fd, std::span<const std::byte> bytes, const Patience& patience) {
  while (!bytes.empty()) {
    const size_t sent = send_some(fd, bytes);
    if (sent == 0) wait(fd, POLLOUT, patience);
    bytes = bytes.subspan(sent);
  }
}

void receive_all(int fd, std::span<std::byte> bytes, const Patience& patience) {
  while (!bytes.empty()) {
    const size_t got = moved(::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT), "recv");
    if (got == 0) wait(fd, POLLIN, patience);
    bytes = bytes.subspan(got);
  }
}

// A whole frame that is no kData.
std::vector<std::byte> receive_frame(int fd, DataFrame type, uint64_t sequence, const Patience& patience) {
  std::array<std::byte, kDataHeaderBytes> raw;
  receive_all(fd, raw, patience);
  const DataHeader header = decode_header(raw);
  NXL_CHECK(header.type == type && header.sequence == sequence, kInvalid, "frame of type ",
            static_cast<int>(header.type), " and request ", header.sequence, ", expected ", static_cast<int>(type),
            " and ", sequence);
  std::vector<std::byte> body(header.body_bytes);
  receive_all(fd, body, patience);
  check_body(header, body);
  return body;
}

// Runs `exchange`; whatever it throws becomes the outcome.
template <typename Exchange>
CopyResult guarded(Exchange&& exchange) {
  try {
    exchange();
    return {};
  } catch (const Ended& ended) {
    return ended.result;
  } catch (const Error& error) {  // the peer broke a rule
    return {{NRT_FAILURE, std::string("tcp: ") + error.what()}, Cause::kIntegrity, 0};
  }
}

// One kRead on its way: `runs` are its parts of the caller's runs.
struct Asked {
  uint64_t sequence = 0;
  size_t first_run = 0;
  uint64_t bytes_left = 0;
  bool staged = false;  // its pieces are so small that they are received together and copied to their places
  std::vector<Run> runs;
  std::optional<RunCursor> next;  // of the bytes that are to arrive
};

// One call of DataStream::read.
class Reading {
 public:
  Reading(int fd, std::span<const Run> runs, const ReadTables& tables, bool checksum, Progress& progress,
          const Patience& patience, uint64_t* next_sequence)
      : fd_(fd),
        runs_(runs),
        tables_(tables),
        checksum_(checksum),
        progress_(progress),
        patience_(patience),
        next_sequence_(*next_sequence),
        plan_(runs) {}

  // Returns when every byte is in place; throws Ended, or Error for a broken rule. A run out of bounds ends it after
  // the bytes of those before.
  void run() {
    for (;;) {
      while (asked_.size() < kRequestsInFlight && !plan_.at_end() && !out_of_bounds_) ask();
      if (asked_.empty()) break;
      look(patience_);
      size_t progress = 0;
      if (sent_ != out_.size()) {
        const size_t bytes = send_some(fd_, std::span(out_).subspan(sent_));
        sent_ += bytes, progress += bytes;
        if (sent_ == out_.size()) out_.clear(), sent_ = 0;
      }
      progress += receive_some();
      if (progress == 0) wait(fd_, static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)), patience_);
    }
    if (out_of_bounds_) throw Ended{*out_of_bounds_};
  }

  size_t first_incomplete_run() const {
    if (refused_run_) return *refused_run_;
    return asked_.empty() ? plan_.run() : asked_.front()->first_run;
  }
  // True when the stream is between two requests although the read failed.
  bool in_step() const { return asked_.empty() && out_.empty() && state_ == State::kHeader && have_ == 0; }

 private:
  enum class State { kHeader, kData, kBody };

  // Encodes the next request behind what is to be sent.
  void ask() {
    auto asked = std::make_unique<Asked>();
    ReadRequest request;
    asked->first_run = plan_.run();
    while (!plan_.at_end() && request.runs.size() < kMaxRequestRuns && asked->bytes_left < kRequestBytes) {
      const size_t index = plan_.run();
      const Run& run = runs_[index];
      const auto source = tables_.sources->find(run.source_region);
      const uint64_t source_bytes = source == tables_.sources->end() ? 0 : source->second->bytes;
      const auto target = region_bytes(*tables_.targets, run.target_region);
      if (!run_within(run, source_bytes, target.size())) {
        out_of_bounds_ = out_of_bounds("tcp", runs_, index, source_bytes, target.size());
        break;
      }
      if (request.regions.empty() || request.regions.back().index != run.source_region) {
        if (request.regions.size() == kMaxRequestRegions) break;
        request.regions.push_back({run.source_region, source->second->key});
      }
      const Run part = plan_.next(kRequestBytes - asked->bytes_left);
      asked->bytes_left += part.total_bytes();
      asked->runs.push_back(part);
      request.runs.push_back(part);
      request.runs.back().source_region = static_cast<uint32_t>(request.regions.size() - 1);
    }
    if (asked->runs.empty()) return;
    asked->next.emplace(asked->runs);
    asked->staged = small_pieces(asked->runs);
    asked->sequence = next_sequence_++;
    const auto frame =
        encode_data_frame(DataFrame::kRead, asked->sequence, encode_read(request), checksum_ ? kDataFlagChecksum : 0);
    out_.insert(out_.end(), frame.begin(), frame.end());
    asked_.push_back(std::move(asked));
  }

  std::byte* target_of(const Run& part) const {
    return region_bytes(*tables_.targets, part.target_region).data() + part.target_offset;
  }

  // Where the next bytes of the socket belong.
  void refill() {
    in_.clear();
    if (state_ == State::kBody) return in_.add(body_.data() + have_, body_.size() - have_);
    if (state_ == State::kData && asked_.front()->staged) {
      if (staging_.empty()) staging_.resize(kStagingBytes);
      scattered_ = 0;
      const size_t bytes = std::min<uint64_t>(unplaced_, staging_.size());
      in_.add(staging_.data(), bytes);
      unplaced_ -= bytes;
      if (unplaced_ != 0) return;
    } else if (state_ == State::kData) {
      while (unplaced_ != 0 && !in_.full()) {
        const Run part = asked_.front()->next->next(unplaced_, 1);
        in_.add(target_of(part), part.bytes);
        unplaced_ -= part.bytes;
      }
      if (unplaced_ != 0 || in_.full()) return;
    }
    in_.add(header_.data() + have_, header_.size() - have_);  // every data frame is followed by another frame
  }

  // The next `bytes` of the staging buffer go to their places.
  void scatter(size_t bytes) {
    while (bytes != 0) {
      const Run part = asked_.front()->next->next(bytes);
      std::byte* target = target_of(part);
      for (uint32_t i = 0; i < part.count; ++i, target += part.target_stride) {
        std::memcpy(target, staging_.data() + scattered_, part.bytes);
        scattered_ += part.bytes;
      }
      bytes -= part.total_bytes();
    }
  }

  size_t receive_some() {
    if (in_.empty()) refill();
    msghdr message{};
    message.msg_iov = in_.data();
    message.msg_iovlen = in_.count();
    const size_t got = moved(::recvmsg(fd_, &message, MSG_DONTWAIT), "recvmsg");
    if (got == 0) return 0;
    in_.consume(got);
    size_t rest = got;
    if (state_ == State::kData) {
      const size_t payload = std::min<uint64_t>(rest, data_left_);
      rest -= payload;
      data_left_ -= payload;
      if (asked_.front()->staged) scatter(payload);
      progress_.bytes_done.fetch_add(payload, std::memory_order_relaxed);
      if (data_left_ == 0) end_of_data();
    }
    have_ += rest;
    if (state_ == State::kHeader && have_ == header_.size()) take_header();
    if (state_ == State::kBody && have_ == body_.size()) take_status();
    return got;
  }

  void take_header() {
    frame_ = decode_header(header_);
    have_ = 0;
    Asked& asked = *asked_.front();
    NXL_CHECK(frame_.sequence == asked.sequence, kInvalid, "frame of request ", frame_.sequence, ", expected ",
              asked.sequence);
    if (frame_.type == DataFrame::kData) {
      NXL_CHECK(frame_.body_bytes != 0 && frame_.body_bytes <= asked.bytes_left, kInvalid, "data frame of ",
                frame_.body_bytes, " bytes, ", asked.bytes_left, " are left of the request");
      NXL_CHECK(!checksum_ || frame_.flags & kDataFlagChecksum, kInvalid, "data frame without the checksum asked for");
      asked.bytes_left -= frame_.body_bytes;
      data_left_ = unplaced_ = frame_.body_bytes;
      frame_begin_ = asked.next;
      state_ = State::kData;
    } else {
      NXL_CHECK(frame_.type == DataFrame::kStatus, kInvalid, "unexpected frame of type ",
                static_cast<int>(frame_.type));
      body_.resize(frame_.body_bytes);
      state_ = State::kBody;
    }
    in_.clear();
  }

  void end_of_data() {
    state_ = State::kHeader;
    if (!checksum_) return;
    uint32_t crc = 0;
    for (uint32_t left = frame_.body_bytes; left != 0;) {
      const Run part = frame_begin_->next(left, 1);
      crc = crc32c({target_of(part), part.bytes}, crc);
      left -= static_cast<uint32_t>(part.bytes);
    }
    if (crc != frame_.body_crc) {
      end(NRT_FAILURE, Cause::kIntegrity,
          detail::concat("checksum of ", frame_.body_bytes, " bytes is ", crc, ", sent was ", frame_.body_crc));
    }
  }

  void take_status() {
    check_body(frame_, body_);
    const RequestStatus status = decode_status(body_);
    state_ = State::kHeader;
    have_ = 0;
    in_.clear();
    const size_t first_run = asked_.front()->first_run;
    const uint64_t missing = asked_.front()->bytes_left;
    asked_.pop_front();
    if (status.code != 0 || status.cause != Cause::kNone) {
      refused_run_ = first_run;
      const Cause cause = status.cause == Cause::kNone ? Cause::kProvider : status.cause;
      throw Ended{
          {{status.code != 0 ? status.code : static_cast<int>(NRT_FAILURE), "tcp: the peer says: " + status.text},
           cause,
           first_run}};
    }
    NXL_CHECK(missing == 0, kInvalid, "request said to be done with ", missing, " bytes missing");
  }

  const int fd_;
  const std::span<const Run> runs_;
  const ReadTables& tables_;
  const bool checksum_;
  Progress& progress_;
  const Patience& patience_;
  uint64_t& next_sequence_;

  RunCursor plan_;  // of what has not been asked for
  std::optional<CopyResult> out_of_bounds_;
  std::optional<size_t> refused_run_;  // the first one of the request that the peer ended with a bad status
  std::deque<std::unique_ptr<Asked>> asked_;
  std::vector<std::byte> out_;
  size_t sent_ = 0;

  State state_ = State::kHeader;
  std::array<std::byte, kDataHeaderBytes> header_;
  std::vector<std::byte> body_;
  size_t have_ = 0;  // of the header or the body
  DataHeader frame_;
  std::optional<RunCursor> frame_begin_;
  uint64_t data_left_ = 0;  // of the data frame: to arrive
  uint64_t unplaced_ = 0;   // of the data frame: not in in_ yet
  IoVectors in_;
  std::vector<std::byte> staging_;
  size_t scattered_ = 0;  // bytes of staging_ that are in their places
};

}  // namespace

std::unique_ptr<DataStream> DataStream::open(const Address& address, const ChannelSetup& setup,
                                             const Patience& patience, CopyResult* failure) {
  std::unique_ptr<DataStream> stream;
  *failure = guarded([&] {
    GuardedFd fd;
    try {
      fd = begin_connect(address);
    } catch (const Error& error) {
      end(NRT_FAILURE, Cause::kProvider, error.what());
    }
    wait(fd.get(), POLLOUT, patience);
    if (const int error = connect_error(fd.get())) {
      end(NRT_FAILURE, Cause::kProvider, detail::concat(address.text(), ": ", std::strerror(error)));
    }
    Nonce own;
    random_bytes(std::as_writable_bytes(std::span(own)));
    std::vector<std::byte> hello(sizeof(setup.session) + sizeof(own));
    std::memcpy(hello.data(), &setup.session, sizeof(setup.session));
    std::memcpy(hello.data() + sizeof(setup.session), own.data(), sizeof(own));
    send_all(fd.get(), encode_data_frame(DataFrame::kHello, 0, hello), patience);

    const auto challenge = receive_frame(fd.get(), DataFrame::kChallenge, 0, patience);
    Nonce theirs;
    Sha256Digest proof;
    NXL_CHECK(challenge.size() == sizeof(theirs) + sizeof(proof), kInvalid, "challenge of ", challenge.size(),
              " bytes");
    std::memcpy(theirs.data(), challenge.data(), sizeof(theirs));
    std::memcpy(proof.data(), challenge.data() + sizeof(theirs), sizeof(proof));
    if (!equal_in_constant_time(proof, data_proof(setup.secret, setup.session, true, setup.initiator, own, theirs))) {
      end(NRT_FAILURE, Cause::kRefused, "who listens at " + address.text() + " does not know the session's secret");
    }
    const Sha256Digest answer = data_proof(setup.secret, setup.session, false, setup.initiator, own, theirs);
    send_all(fd.get(), encode_data_frame(DataFrame::kProof, 0, std::as_bytes(std::span(answer))), patience);
    stream.reset(new DataStream(std::move(fd)));
  });
  return stream;
}

bool DataStream::stale() const {
  std::byte byte;
  return broken_ || ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

CopyResult DataStream::read(std::span<const Run> runs, const ReadTables& tables, bool checksum, Progress& progress,
                            const Patience& patience) {
  broken_ = true;  // until the last answer is in
  Reading reading(fd_.get(), runs, tables, checksum, progress, patience, &next_sequence_);
  CopyResult result = guarded([&] { reading.run(); });
  broken_ = !reading.in_step();
  if (!result.status.is_ok() && result.first_failed_run == 0) result.first_failed_run = reading.first_incomplete_run();
  return result;
}

Status DataStream::read_word(uint64_t index, uint64_t* value, const Patience& patience) {
  broken_ = true;
  const CopyResult result = guarded([&] {
    const uint64_t sequence = next_sequence_++;
    send_all(fd_.get(), encode_data_frame(DataFrame::kWord, sequence, std::as_bytes(std::span(&index, 1))), patience);
    const RequestStatus status = decode_status(receive_frame(fd_.get(), DataFrame::kStatus, sequence, patience));
    broken_ = false;
    if (status.code != 0) end(status.code, Cause::kRefused, "the peer says: " + status.text);
    *value = status.word;
  });
  return result.status;
}

}  // namespace nxl::kv
