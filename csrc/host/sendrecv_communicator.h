// SPDX-License-Identifier: Apache-2.0
// One one-way communicator of send/receive: its requests, and how their bytes cross to the other process.
//
// Both ends talk over one socket in 16-byte frames. A posted receive is announced (READY with its size); the sender
// moves a message once its receive is there, so nothing is buffered unasked and sizes are compared before bytes move.
// On one machine the bytes go through a ring of shared memory that the sender made, over TCP they follow their frame.
// Matching is by order alone: the n-th send meets the n-th receive.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/unique_handle.h"
#include "host/sendrecv_rendezvous.h"
#include "host/tensors.h"
#include "nrt_abi.h"

namespace nxl::host {

using SendRecvClock = std::chrono::steady_clock;

// The last bytes of a received message stay out of the tensor, which holds kUnflushed there, until flush: a caller
// that forgets to flush sees wrong bytes here as it may on the chip.
inline constexpr uint64_t kHeldBytes = 4096;
inline constexpr std::byte kUnflushed{0xA5};

class Communicator;

struct SendRecvRequest {
  std::shared_ptr<Communicator> communicator;
  View view;  // keeps the memory alive until the request is over
  bool finished = false;
  NRT_STATUS status = NRT_SUCCESS;
  uint64_t size = 0;  // bytes that arrived
  SendRecvClock::time_point moved_at = SendRecvClock::now();
  std::vector<std::byte> held;  // of a receive: the message's last bytes
  std::atomic<int> testers{0};  // threads inside test_request
};
using SendRecvRequestPtr = std::shared_ptr<SendRecvRequest>;

// 2 MiB that the two processes share. The sender writes a slot, names it in a CHUNK, and gets it back with a CREDIT.
class SharedRing {
 public:
  static constexpr uint32_t kSlots = 8;
  static constexpr uint32_t kSlotBytes = 256 << 10;

  static std::unique_ptr<SharedRing> create(UniqueFd* fd);           // null: no shared memory to be had
  static std::unique_ptr<SharedRing> map(int fd, std::string* why);  // of the other process; checks what it maps
  ~SharedRing();
  SharedRing(const SharedRing&) = delete;
  SharedRing& operator=(const SharedRing&) = delete;
  std::byte* slot(uint32_t index) const { return base_ + size_t{index} * kSlotBytes; }

 private:
  explicit SharedRing(std::byte* base) : base_(base) {}
  std::byte* base_;
};

// Not thread safe: its owner locks.
class Communicator {
 public:
  enum class State { kWaiting, kConnected, kBroken };

  Communicator(bool sends, int core, std::string peer_ip, int peer_core)
      : sends_(sends), core_(core), peer_ip_(std::move(peer_ip)), peer_core_(peer_core) {}

  bool sends() const { return sends_; }
  int core() const { return core_; }  // absolute
  const std::string& peer_ip() const { return peer_ip_; }
  int peer_core() const { return peer_core_; }
  State state() const { return state_; }
  int fd() const { return socket_.get(); }
  bool wants_to_write() const { return out_at_ != out_.size() || payload_left_ != 0; }
  uint32_t pending() const { return pending_; }  // posted, and not reported as finished
  bool in_flight() const { return !posted_.empty() || !awaiting_.empty(); }
  std::string label() const;  // for messages

  // The other end is there. `ring` is null over TCP.
  void connected(ForkClosedFd socket, std::unique_ptr<SharedRing> ring);
  // Nothing moves any more: every request in flight finishes with NETWORK_PROXY_FAILURE.
  void fail(const std::string& why);
  // The runtime was closed: the connection goes, requests stay as they are.
  void abandon();

  void post(const SendRecvRequestPtr& request);
  void reported() { --pending_; }

  // True when the next send has met its receive and has not begun: begin() takes the status that faults give it.
  bool can_begin() const;
  void begin(NRT_STATUS injected);
  // Takes in and gives out what can be without waiting. False when nothing moved.
  bool advance();

 private:
  enum class FrameType : uint32_t { kReady = 1, kCredit, kDone, kData, kChunk, kOversize, kAbort };
  struct Frame {
    FrameType type;
    uint32_t slot;
    uint64_t value;
  };

  void put(FrameType type, uint32_t slot, uint64_t value);
  bool write();  // true when bytes left
  bool read();
  bool read_payload();
  void take(const Frame& frame);
  void take_at_sender(const Frame& frame);
  void take_at_receiver(const Frame& frame);
  bool fill();  // sender: the next chunk of the message that has begun
  void sent_whole();
  void start_receive(uint64_t bytes);
  void place(std::span<const std::byte> bytes);
  std::span<std::byte> landing(uint64_t most);
  void landed(uint64_t bytes);
  void finish(SendRecvRequest& request, NRT_STATUS status, uint64_t size);

  const bool sends_;
  const int core_;
  const std::string peer_ip_;
  const int peer_core_;
  State state_ = State::kWaiting;
  ForkClosedFd socket_;
  std::unique_ptr<SharedRing> ring_;
  uint32_t pending_ = 0;

  std::deque<SendRecvRequestPtr> posted_;    // in order; the front one is what moves
  std::deque<SendRecvRequestPtr> awaiting_;  // sent whole, not acknowledged
  bool moving_ = false;                      // the front one has begun
  bool stuck_ = false;                       // an injected TIMEOUT: the front one never moves
  uint64_t total_ = 0, moved_ = 0;           // of the message that moves

  std::deque<uint64_t> ready_;        // sender: sizes of the receives that are there
  std::vector<uint32_t> free_slots_;  // sender
  uint64_t announced_ = 0;            // receiver: receives that were announced are posted_'s first

  std::vector<std::byte> out_;  // frames on their way, from out_at_ on
  size_t out_at_ = 0;
  const std::byte* payload_ = nullptr;  // goes behind out_ (TCP)
  uint64_t payload_left_ = 0;
  std::vector<std::byte> in_;   // of a frame
  uint64_t incoming_left_ = 0;  // payload of the last CHUNK that has not arrived (TCP)
};

}  // namespace nxl::host
