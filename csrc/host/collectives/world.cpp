// SPDX-License-Identifier: Apache-2.0
// Meeting the other ranks, and the thread that learns which of them are gone.
#include "host/collectives/world.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "host/cpu_share.h"
#include "host/environment.h"
#include "host/log.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(5);  // for a message of a few hundred bytes
constexpr int64_t kMaxSeconds = 86400;

struct GroupHello {
  uint64_t magic = kRendezvousMagic;
  std::array<std::byte, kTokenBytes> token{};
  uint64_t group = 0;
  uint32_t rank = 0;
  uint32_t padding = 0;
};

uint64_t inode_of(const char* path) {
  struct stat info {};
  return ::stat(path, &info) == 0 ? static_cast<uint64_t>(info.st_ino) ^ static_cast<uint64_t>(info.st_dev) << 32 : 0;
}

// Processes with the same answer see the same shared memory and the same process ids.
std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot + "/" + std::to_string(inode_of("/proc/self/ns/pid")) + "/" + std::to_string(inode_of("/dev/shm"));
}

// FNV-1a: names a group among the groups of one world.
uint64_t name_of(const std::string& purpose, const std::vector<uint32_t>& members) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const char letter : purpose) add(static_cast<unsigned char>(letter));
  for (const uint32_t member : members) {
    for (int shift = 0; shift < 32; shift += 8) add(static_cast<unsigned char>(member >> shift));
  }
  return hash;
}

}  // namespace

CollectiveOptions CollectiveOptions::from_environment() {
  CollectiveOptions options;
  if (const char* root = std::getenv("NEURON_RT_ROOT_COMM_ID")) options.root = root;
  if (const auto seconds = environment_integer("NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT", 1, kMaxSeconds)) {
    options.limit = std::chrono::seconds(*seconds);
  }
  const char* transport = std::getenv("NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT");
  const std::string chosen = transport != nullptr ? transport : "";
  if (chosen == "shm") {
    options.transport = Transport::kSharedMemory;
  } else if (chosen == "tcp") {
    options.transport = Transport::kTcp;
  } else if (!chosen.empty() && chosen != "auto") {
    refuse(NRT_INVALID, "NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT=", chosen, " is none of auto, shm and tcp");
  }
  return options;
}

World::World(uint32_t rank, uint32_t count, CollectiveOptions options)
    : rank_(rank), count_(count), options_(std::move(options)) {}

World::~World() { close(); }

void World::connect() {
  const std::lock_guard lock(connecting_);
  if (connected_) return;
  if (closing()) refuse(NRT_CLOSED, "the runtime is closing");
  meet();
  uint32_t here = 0;
  for (uint32_t rank = 0; rank < count_; ++rank) here += shares_memory(rank) ? 1 : 0;
  may_spin_ = static_cast<int>(here) <= usable_cpus();
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) refuse(NRT_RESOURCE, "no event descriptor is left");
  thread_ = std::thread([this] { watch(); });
  connected_ = true;
  log_parts(LogLevel::kInfo, "rank ", rank_, " met ", count_, " ranks at ", options_.root, ", ", here, " on this host");
}

void World::meet() {
  const Deadline deadline = Clock::now() + options_.limit;
  const auto stop = [this] { return closing(); };
  const Address root = resolve(options_.root, "NEURON_RT_ROOT_COMM_ID");
  if (rank_ == 0 && !service_) service_ = std::make_unique<RootService>(options_.root, count_);
  root_ = connect_to(root, deadline, stop);
  const auto give_up = [&](const std::string& what) {
    root_.close();
    throw_error(ErrorKind::kExecution,
                nxl::detail::concat("rank ", rank_, " of ", count_,
                                    ": the rendezvous at NEURON_RT_ROOT_COMM_ID=", options_.root, ": ", what),
                NRT_EXEC_HW_ERR_COLLECTIVES);
  };
  const std::string limit =
      std::to_string(options_.limit.count() / 1000) + " s (NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT)";
  if (!root_) give_up(closing() ? "the runtime is closing" : "rank 0 did not listen there within " + limit);

  Hello hello;
  hello.member.rank = rank_;
  hello.member.count = count_;
  hello.member.process = static_cast<uint32_t>(getpid());
  hello.member.user = static_cast<uint32_t>(geteuid());
  std::strncpy(hello.member.host, host_identity().c_str(), sizeof(hello.member.host) - 1);
  const std::string here = root_.local_address();
  const std::string bind = here.find(':') == here.npos ? here + ":0" : "[" + here + "]:0";
  listener_ = listen_at(resolve(bind, "the address towards rank 0"), bind);
  hello.member.port = listener_.local_port();

  Notice notice;
  if (!root_.send_all(bytes_of(hello), deadline, stop) ||
      !root_.receive_all(writable_bytes_of(notice), deadline, stop)) {
    if (closing()) give_up("the runtime is closing");
    if (Clock::now() < deadline) give_up("rank 0 ended before all ranks had come");
    give_up((service_ ? "rank " + service_->missing() : "not every rank") + " came within " + limit);
  }
  if (notice.kind == Notice::Kind::kRefused) {
    std::string text(std::min<uint32_t>(notice.value, 4096), '\0');
    root_.receive_all(std::as_writable_bytes(std::span(text)), Clock::now() + kPatience, stop);
    give_up("refused: " + text);
  }
  if (notice.kind != Notice::Kind::kTable || notice.value != count_) give_up("rank 0 speaks another protocol");
  table_.resize(count_);
  if (!root_.receive_all(token_, Clock::now() + kPatience, stop) ||
      !root_.receive_all(std::as_writable_bytes(std::span(table_)), Clock::now() + kPatience, stop)) {
    give_up("rank 0 ended before all ranks had come");
  }
}

bool World::shares_memory(uint32_t rank) const {
  const Member& mine = table_[rank_];
  const Member& theirs = table_[rank];
  return mine.user == theirs.user && std::strncmp(mine.host, theirs.host, sizeof(mine.host)) == 0;
}

std::string World::describe(uint32_t rank) const {
  if (rank >= table_.size()) return nxl::detail::concat("rank ", rank);
  return nxl::detail::concat("rank ", rank, " (process ", table_[rank].process, " at ", table_[rank].address, ")");
}

std::shared_ptr<Group> World::group(const std::vector<uint32_t>& members, const char* purpose) {
  connect();
  Joined* joined = nullptr;
  {
    const std::lock_guard lock(groups_mutex_);
    joined = &groups_[{purpose, members}];
  }
  const std::lock_guard lock(joined->mutex);
  std::shared_ptr<Group>& group = joined->group;
  if (group) return group;
  size_t me = members.size();
  bool shared = true;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank_) me = i;
    shared = shared && shares_memory(members[i]);
  }
  NXL_CHECK(me < members.size(), kInternal, "rank ", rank_, " is in no group of this collective");
  using Transport = CollectiveOptions::Transport;
  if (options_.transport == Transport::kSharedMemory && !shared) {
    refuse(NRT_INVALID,
           "NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT=shm, but the ranks of a group are on several hosts");
  }
  const bool use_memory = shared && options_.transport != Transport::kTcp;
  const uint64_t name = name_of(purpose, members);
  group = use_memory ? join_shared_memory(*this, members, me, name) : join_tcp(*this, members, me, name);
  return group;
}

void World::watch() {
  pthread_setname_np(pthread_self(), "nrt_host/ranks");
  while (!closing()) {
    pollfd entries[] = {{wake_, POLLIN, 0}, {listener_.fd(), POLLIN, 0}, {root_ ? root_.fd() : -1, POLLIN, 0}};
    if (::poll(entries, 3, -1) < 0) continue;
    if (entries[1].revents != 0) accept_one();
    if (entries[2].revents != 0 && !hear()) root_.close();
  }
}

void World::accept_one() {
  Socket socket = accept_from(listener_);
  GroupHello hello;
  if (!socket || !socket.receive_all(writable_bytes_of(hello), Clock::now() + std::chrono::seconds(1)) ||
      hello.magic != kRendezvousMagic || hello.token != token_) {
    return;
  }
  const std::lock_guard lock(mutex_);
  arrivals_[{hello.group, hello.rank}] = std::move(socket);
  arrived_.notify_all();
}

bool World::hear() {
  Notice notice;
  if (!root_.receive_all(writable_bytes_of(notice), Clock::now() + kPatience)) {
    mark_lost(0, "it ended without closing its runtime");
    return false;
  }
  if (notice.kind == Notice::Kind::kLeft) {
    mark_lost(notice.value, "it has closed its runtime");
  } else if (notice.kind == Notice::Kind::kGone) {
    mark_lost(notice.value, "it ended without closing its runtime");
  }
  return !(notice.kind == Notice::Kind::kLeft && notice.value == 0);
}

void World::mark_lost(uint32_t rank, std::string why) {
  if (rank == rank_) return;
  const std::lock_guard lock(mutex_);
  lost_.emplace(rank, std::move(why));
  arrived_.notify_all();
}

std::optional<std::string> World::lost(uint32_t rank, bool look) const {
  if (closing()) return "this runtime is closing";
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = lost_.find(rank); found != lost_.end()) return found->second;
  }
  // When rank 0 has left, nobody passes on the end of the others; on this host the system tells.
  if (look && shares_memory(rank) && ::kill(static_cast<pid_t>(table_[rank].process), 0) != 0 && errno == ESRCH) {
    return "it ended without closing its runtime";
  }
  return std::nullopt;
}

Socket World::take_connection(uint64_t group, uint32_t rank, Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const auto found = arrivals_.find({group, rank}); found != arrivals_.end()) {
      Socket socket = std::move(found->second);
      arrivals_.erase(found);
      return socket;
    }
    if (closing() || lost_.count(rank) != 0 || Clock::now() >= deadline) return Socket();
    arrived_.wait_for(lock, std::chrono::milliseconds(50));
  }
}

Socket open_connection(const World& world, uint64_t group, uint32_t rank, Deadline deadline) {
  const Member& member = world.member(rank);
  const std::string address = member.address;
  const std::string shown =
      (address.find(':') == address.npos ? address : "[" + address + "]") + ":" + std::to_string(member.port);
  const auto stop = [&] { return world.lost(rank, false).has_value(); };
  Socket socket = connect_to(resolve(shown, "the address of a rank"), deadline, stop);
  GroupHello hello;
  hello.token = world.token();
  hello.group = group;
  hello.rank = world.rank();
  if (socket && !socket.send_all(bytes_of(hello), deadline, stop)) socket.close();
  return socket;
}

void World::abort() noexcept {
  closing_ = true;
  arrived_.notify_all();
}

void World::close() noexcept {
  abort();
  const std::lock_guard lock(connecting_);
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
    thread_.join();
    ::close(wake_);
  }
  if (root_ && connected_) {
    try {
      root_.send_all(bytes_of(Notice{Notice::Kind::kLeft, rank_}), Clock::now() + kPatience);
    } catch (...) {
    }
  }
  root_.close();
  service_.reset();
  listener_.close();
}

Worlds& Worlds::instance() {
  static auto* worlds = new Worlds;
  return *worlds;
}

void Worlds::open(CollectiveOptions options) {
  const std::lock_guard lock(mutex_);
  options_ = std::move(options);
}

std::shared_ptr<World> Worlds::get(uint32_t rank, uint32_t count) {
  if (count == 0 || count > kMaxRanks || rank >= count) {
    refuse(NRT_INVALID, "rank ", rank, " of ", count, " ranks: a rank is below their number, which is 1 to ",
           kMaxRanks);
  }
  const std::lock_guard lock(mutex_);
  if (closed_) refuse(NRT_CLOSED, "the runtime is closed");
  if (count > 1 && options_.root.empty()) {
    refuse(NRT_INVALID, "collectives of ", count,
           " ranks need NEURON_RT_ROOT_COMM_ID, which was not set when the runtime started: set it to the address of"
           " rank 0, host:port, the same on every rank, or call libtorch_neuronx_lite.distributed.rendezvous() before"
           " the first device tensor");
  }
  std::shared_ptr<World>& world = worlds_[{rank, count}];
  if (!world) world = std::make_shared<World>(rank, count, options_);
  return world;
}

void Worlds::abort() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& [place, world] : worlds_) world->abort();
}

void Worlds::close() noexcept {
  const std::lock_guard lock(mutex_);
  // Rank 0 last: it carries the goodbyes of the others.
  for (auto it = worlds_.rbegin(); it != worlds_.rend(); ++it) it->second->close();
}

}  // namespace nxl::host
