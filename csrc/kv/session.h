// SPDX-License-Identifier: Apache-2.0
// One control connection: handshake, frames both ways, keep-alive, and an orderly or sudden end.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/api.h"
#include "kv/auth.h"
#include "kv/event_loop.h"
#include "kv/messages.h"
#include "kv/region.h"
#include "kv/socket.h"
#include "kv/wire.h"

namespace nxl::kv {

class Session;

// What tests do to frames on their way out: the loss and repetition that broken connections cause.
enum class FrameFate : uint8_t { kPass, kDrop, kRepeat };
using FrameFilter = std::function<FrameFate(FrameType)>;

struct SessionConfig {
  std::string name;
  Key incarnation{};
  std::vector<std::byte> key;  // empty: none
  std::chrono::milliseconds keep_alive{1000}, suspect_after{2000}, down_after{10000};
  std::chrono::milliseconds handshake{5000};
  FrameFilter filter;
};

// Calls come on the control thread. Those that may refuse throw an Error whose text the peer is told.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  virtual void on_proved(Session& session) = 0;                       // name() and incarnation() hold; may refuse
  virtual MetadataMessage local_metadata(int* lease_descriptor) = 0;  // region_count is filled in by the session
  virtual std::shared_ptr<const RegionMap> local_regions() = 0;
  virtual void on_metadata(Session& session) = 0;  // metadata() and regions() are whole; may refuse
  virtual void on_up(Session& session) = 0;
  virtual void on_regions(Session& session) = 0;                    // regions() changed
  virtual void on_layout(Session& session) = 0;                     // metadata().layout changed; may refuse
  virtual void on_frame(Session& session, const Frame& frame) = 0;  // of the types a session does not handle itself
  virtual void on_heard(Session& session, bool suspect) = 0;        // silence began or ended
  virtual void on_tick(Session& session) = 0;                       // a few times a second while up
  // Nothing more comes over it as far as this side is concerned. The host calls close() when it has quiesced what the
  // session served; the peer takes the closing as a certificate of that.
  virtual void on_lost(Session& session) = 0;
  virtual void on_drained(Session& session) = 0;  // the peer closed its end of a lost session
  virtual void on_closed(Session& session) = 0;   // the socket is gone
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  enum class State : uint8_t { kConnecting, kHello, kProof, kMetadata, kUp, kLost, kClosed };

  // `peer_address`: for messages. Control thread.
  Session(EventLoop& loop, SessionHost& host, SessionConfig config, GuardedFd socket, bool initiator, bool unix_socket,
          std::string peer_address);
  ~Session();
  void start();

  // Any thread. Frames go out in the order of the calls; after the session is lost they are dropped.
  void send(FrameType type, Body body);
  size_t queued_bytes() const;

  // The rest: control thread.
  void sync_regions() { sync_regions(host_.local_regions()); }  // sends what joined and left since the last time
  void end(const std::string& why, bool final);  // we end it: GOAWAY, and nothing more but the peer's last words
  void close();

  State state() const { return state_; }
  bool initiator() const { return initiator_; }
  bool unix_socket() const { return unix_socket_; }
  bool peer_closed() const { return peer_closed_; }  // the stream ended from the other side
  bool refused() const { return refused_; }          // the handshake failed for a reason that lasts
  bool final() const { return final_; }              // the peer asked not to come back
  const std::string& why() const { return why_; }
  const std::string& name() const { return name_; }
  const Key& incarnation() const { return incarnation_; }
  uint64_t number() const { return number_; }
  const Secret& data_secret() const { return data_secret_; }
  const std::string& address() const { return peer_address_; }
  std::string remote_host() const;
  pid_t pid() const { return pid_; }
  const MetadataMessage& metadata() const { return metadata_; }
  std::shared_ptr<const UniqueFd> lease_descriptor() const { return lease_fd_; }
  std::shared_ptr<const RemoteRegionMap> regions() const { return regions_; }
  std::string label() const;  // "decode-1 (session 1f2e)": for log lines

 private:
  using Time = EventLoop::Time;
  struct Outgoing {
    FrameType type;
    Body body;
    std::vector<int> fds;
    std::shared_ptr<const void> keep;  // owner of the descriptors
  };

  void send_with(Outgoing outgoing);
  void sync_regions(const std::shared_ptr<const RegionMap>& regions);
  void on_events(uint32_t events);
  void receive();
  bool flush();  // false: the socket failed, and the session is lost
  void encode_next();
  void arm(bool writable);
  void handle(Frame frame);
  void authenticate(Frame& frame);
  void on_hello(const Frame& frame);
  void on_challenge(const Frame& frame);
  void on_proof(const Frame& frame);
  void begin_metadata();
  void on_metadata(const Frame& frame);
  void on_regions_frame(const Frame& frame);
  void on_layout_frame(const Frame& frame);
  void check_metadata_complete();
  void maybe_up();
  void tick();
  void refuse(const std::string& why);
  void lose(const std::string& why);
  std::shared_ptr<const UniqueFd> take_descriptor();

  EventLoop& loop_;
  SessionHost& host_;
  const SessionConfig config_;
  GuardedFd socket_;
  const bool initiator_;
  const bool unix_socket_;
  const std::string peer_address_;
  State state_;
  bool peer_closed_ = false, refused_ = false, final_ = false, shut_write_ = false, suspect_ = false;
  std::string why_;

  // The peer, as the handshake learnt it.
  std::string name_;
  Key incarnation_{};
  pid_t pid_ = 0;
  uint64_t number_ = 0;
  Transcript transcript_;
  Secret frame_secret_{}, data_secret_{};
  bool authenticated_ = false;  // frames carry codes from here on
  MetadataMessage metadata_;
  std::shared_ptr<const UniqueFd> lease_fd_;
  std::shared_ptr<const RemoteRegionMap> regions_ = std::make_shared<RemoteRegionMap>();
  bool has_metadata_ = false, metadata_accepted_ = false, peer_ready_ = false;
  std::set<uint32_t> sent_regions_;

  FrameParser parser_;
  std::deque<std::shared_ptr<const UniqueFd>> descriptors_;
  uint64_t received_sequence_ = 0;
  Time heard_at_, ticked_at_, sent_at_, handshake_until_;
  EventLoop::TimerId timer_ = 0;

  uint64_t sent_sequence_ = 0;
  std::vector<std::byte> writing_;  // the frame on its way, from written_ on
  size_t written_ = 0;
  std::vector<int> writing_fds_;
  std::shared_ptr<const void> writing_keep_;
  bool armed_writable_ = false;

  mutable std::mutex out_mutex_;
  std::deque<Outgoing> out_;
  size_t out_bytes_ = 0;
  bool out_closed_ = false;
  bool flush_called_ = false;
};

}  // namespace nxl::kv
