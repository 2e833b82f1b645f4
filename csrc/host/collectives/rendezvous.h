// SPDX-License-Identifier: Apache-2.0
// The rendezvous on the wire, and the service that rank 0 runs for it. All integers are in the byte order of the host:
// every rank of a world runs the same build.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "host/collectives/sockets.h"

namespace nxl::host {

inline constexpr size_t kTokenBytes = 16;
inline constexpr uint32_t kMaxRanks = 4096;
inline constexpr uint64_t kRendezvousMagic = 0x31303043434c584e;  // "NXLCC001"

// One rank as the others see it.
struct Member {
  uint32_t rank = 0;
  uint32_t count = 0;
  uint32_t process = 0;
  uint32_t user = 0;
  char host[96] = {};  // equal for ranks that can share memory: boot id, process and shared-memory name spaces
  char address[64] = {};
  uint16_t port = 0;  // where it takes connections of groups
  uint16_t padding[3] = {};
};

struct Hello {
  uint64_t magic = kRendezvousMagic;
  Member member;
};

// From rank 0: kTable is followed by the token and `count` Members, kRefused by `value` bytes of text, kGone and kLeft
// name a rank in `value`. To rank 0: kLeft.
struct Notice {
  enum class Kind : uint32_t { kTable = 1, kRefused, kGone, kLeft };
  Kind kind = Kind::kTable;
  uint32_t value = 0;
};

// Collects the ranks, then passes on which of them end.
class RootService {
 public:
  // Throws when the address cannot be listened at.
  RootService(const std::string& root, uint32_t count);
  ~RootService();  // tells the others that rank 0 leaves
  // Ranks that have not come yet, as text, for the message of a time-out.
  std::string missing() const;

 private:
  struct Peer {
    Socket socket;
    Member member;
    bool known = false;
    bool left = false;
  };
  void serve();
  void admit(Socket socket);
  void start_if_complete();
  void hear(Peer& peer);
  void tell_all(const Notice& notice);

  const uint32_t count_;
  Socket listener_;
  int wake_ = -1;
  std::vector<Peer> peers_;
  std::vector<std::atomic<bool>> present_;
  bool started_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace nxl::host
