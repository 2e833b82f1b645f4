// SPDX-License-Identifier: Apache-2.0
// World: one rank's view of all ranks. Who they are, where they are, and which of them are gone.
//
// Note "The rendezvous". Rank 0 listens at NEURON_RT_ROOT_COMM_ID; every rank, rank 0 too, connects to it and says who
// it is; when all have come, each gets the table of all. The connections stay: one that breaks is a rank that died, and
// rank 0 tells the others. It is as open as that address is: keep it on a private network.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "host/collectives/group.h"
#include "host/collectives/rendezvous.h"
#include "host/collectives/sockets.h"

namespace nxl::host {

struct CollectiveOptions {
  enum class Transport { kAuto, kSharedMemory, kTcp };
  std::string root;                         // NEURON_RT_ROOT_COMM_ID, host:port
  std::chrono::milliseconds limit{300000};  // NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT
  Transport transport = Transport::kAuto;   // NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT
  // Read at nrt_init. Throws INVALID naming the variable.
  static CollectiveOptions from_environment();
};

class World {
 public:
  World(uint32_t rank, uint32_t count, CollectiveOptions options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  uint32_t rank() const { return rank_; }
  uint32_t count() const { return count_; }
  const CollectiveOptions& options() const { return options_; }

  // Meets all ranks; the first call does it, for at most the time limit. Throws naming the ranks that did not come.
  void connect();
  // The group of these ranks, this one among them. The first call for a group blocks until its members have come.
  // Groups of different `purpose` do not disturb each other.
  std::shared_ptr<Group> group(const std::vector<uint32_t>& members, const char* purpose);

  // After connect().
  const Member& member(uint32_t rank) const { return table_[rank]; }
  const std::array<std::byte, kTokenBytes>& token() const { return token_; }
  bool shares_memory(uint32_t rank) const;  // with this rank
  bool may_spin() const { return may_spin_; }
  std::string describe(uint32_t rank) const;  // "rank 2 (process 4711 at 10.0.0.5)"

  // Why a rank will not answer any more; nothing while it may. Looks at processes of this host when `look` is set.
  std::optional<std::string> lost(uint32_t rank, bool look) const;
  bool closing() const { return closing_.load(std::memory_order_relaxed); }
  // A connection that another rank opened for this group; invalid when none came before the deadline or the rank is
  // lost.
  Socket take_connection(uint64_t group, uint32_t rank, std::chrono::steady_clock::time_point deadline);

  void abort() noexcept;  // wakes what waits here; it fails
  void close() noexcept;  // says goodbye and ends the thread; after abort()

 private:
  void meet();
  void watch();  // the thread
  void accept_one();
  bool hear();  // false when rank 0 has gone
  void mark_lost(uint32_t rank, std::string why);

  const uint32_t rank_;
  const uint32_t count_;
  const CollectiveOptions options_;
  std::mutex connecting_;
  bool connected_ = false;
  bool may_spin_ = false;
  std::unique_ptr<RootService> service_;  // rank 0
  Socket root_;
  Socket listener_;
  std::vector<Member> table_;
  std::array<std::byte, kTokenBytes> token_{};
  std::atomic<bool> closing_{false};
  int wake_ = -1;  // eventfd
  std::thread thread_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable arrived_;
  std::map<uint32_t, std::string> lost_;
  std::map<std::pair<uint64_t, uint32_t>, Socket> arrivals_;
  // Joining blocks, so each group has a lock of its own.
  struct Joined {
    std::mutex mutex;
    std::shared_ptr<Group> group;
  };
  std::mutex groups_mutex_;
  std::map<std::pair<std::string, std::vector<uint32_t>>, Joined> groups_;
};

// A connection to another rank for a group, which take_connection gives there; invalid as that is.
Socket open_connection(const World& world, uint64_t group, uint32_t rank,
                       std::chrono::steady_clock::time_point deadline);

// The worlds of this process, one per rank and size: a process with several cores may be several ranks.
class Worlds {
 public:
  static Worlds& instance();
  void open(CollectiveOptions options);  // nrt_init
  // Throws INVALID when more than one rank is asked for and NEURON_RT_ROOT_COMM_ID was not set. Does not connect.
  std::shared_ptr<World> get(uint32_t rank, uint32_t count);
  void abort() noexcept;
  void close() noexcept;

 private:
  std::mutex mutex_;
  CollectiveOptions options_;
  bool closed_ = false;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<World>> worlds_;
};

}  // namespace nxl::host
