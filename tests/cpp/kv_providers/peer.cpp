// SPDX-License-Identifier: Apache-2.0
// The peer process: it registers memory, tells the reader about it over a socket pair, and obeys.
#include "peer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kv/auth.h"

namespace nxl::kv {
namespace {

#define MUST(condition)                                                        \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                            \
    }                                                                          \
  } while (0)

struct Command {
  char what = 0;
  uint64_t a = 0, b = 0;
};

// The reader's half of a session comes first, the peer's answer follows.
struct Introduction {
  uint64_t session = 0;
  std::array<uint8_t, 32> secret{};
};

struct RegionNews {
  uint64_t address = 0, bytes = 0;
  Key key{};
};

void send_all(int socket, const void* data, size_t bytes) {
  MUST(::send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

void receive_all(int socket, void* data, size_t bytes) {
  MUST(::recv(socket, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
}

void send_news(int socket, const RegionNews& news, int fd) {
  iovec part{const_cast<RegionNews*>(&news), sizeof(news)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  MUST(::sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(news));
}

std::shared_ptr<RemoteRegion> receive_news(int socket, uint32_t index) {
  RegionNews news;
  iovec part{&news, sizeof(news)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  MUST(::recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) == sizeof(news));
  int fd = -1;
  if (cmsghdr* header = CMSG_FIRSTHDR(&message)) std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  auto region = std::make_shared<RemoteRegion>();
  region->index = index;
  region->key = news.key;
  region->address = news.address;
  region->bytes = news.bytes;
  region->readable = true;
  region->fd = std::make_shared<UniqueFd>(fd);
  return region;
}

}  // namespace

Pool::Pool(uint64_t bytes, bool sealed) : bytes_(bytes) {
  fd_ = UniqueFd(memfd_create("kv-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  MUST(fd_ && ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
  if (sealed) MUST(fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  MUST(base != MAP_FAILED);
  base_ = static_cast<std::byte*>(base);
}

Pool::~Pool() { munmap(base_, bytes_); }

std::byte pattern(uint32_t region, uint64_t offset) {
  uint64_t mixed = (offset / 8 + 1) * 0x9e3779b97f4a7c15 + region * 0xd6e8feb86659fd93;
  mixed ^= mixed >> 29;
  return static_cast<std::byte>(mixed >> (offset % 8 * 8));
}

void fill_pattern(uint32_t region, std::span<std::byte> bytes) {
  for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(region, i);
}

uint32_t TestHost::add(std::span<std::byte> bytes, bool readable) {
  auto region = std::make_shared<Region>();
  region->index = next_++;
  region->description.address = bytes.data();
  region->description.bytes = bytes.size();
  region->description.readable = readable;
  region->key = random_key();
  std::lock_guard lock(mutex_);
  auto regions = std::make_shared<RegionMap>(*regions_);
  regions->emplace(region->index, region);
  regions_ = std::move(regions);
  return region->index;
}

void TestHost::remove(uint32_t index) {
  std::lock_guard lock(mutex_);
  auto regions = std::make_shared<RegionMap>(*regions_);
  regions->erase(index);
  regions_ = std::move(regions);
}

std::shared_ptr<const RegionMap> TestHost::regions() const {
  std::lock_guard lock(mutex_);
  return regions_;
}

void PeerProcess::serve(int socket, const PeerOptions& options) {
  setenv("NEURON_LIBTORCH_LOG_LEVEL", "off", 1);  // what hostile readers do to it is no news
  TestHost host("peer");
  host.checksum = options.checksum;
  const Pool leases(std::max<uint64_t>(options.lease_words, 1) * sizeof(uint64_t), options.sealed);
  host.words = {reinterpret_cast<uint64_t*>(leases.bytes().data()), options.lease_words};
  for (uint64_t i = 0; i < options.lease_words; ++i) host.words[i] = i + 1;
  std::vector<std::unique_ptr<Pool>> pools;
  for (const uint64_t bytes : options.regions) {
    pools.push_back(std::make_unique<Pool>(bytes, options.sealed));
    fill_pattern(host.add(pools.back()->bytes()), pools.back()->bytes());
  }

  const std::unique_ptr<Provider> provider = make_provider(options.provider, host);
  const std::string advertisement = provider->advertise();
  const auto length = static_cast<uint32_t>(advertisement.size());
  send_all(socket, &length, sizeof(length));
  send_all(socket, advertisement.data(), advertisement.size());
  send_news(socket, {reinterpret_cast<uint64_t>(leases.bytes().data()), options.lease_words * sizeof(uint64_t), {}},
            leases.fd());
  for (const auto& [index, region] : *host.regions()) {
    send_news(socket, {reinterpret_cast<uint64_t>(region->description.address), region->description.bytes, region->key},
              pools[index]->fd());
  }

  Introduction introduction;
  receive_all(socket, &introduction, sizeof(introduction));
  ChannelSetup setup;
  setup.peer = "reader";
  setup.session = introduction.session;
  setup.secret = introduction.secret;
  setup.unix_socket = true;
  setup.remote_host = "127.0.0.1";
  setup.advertisement = "1";  // of a reader that serves nothing: any port
  std::string why;
  // Only tcp serves through its own end of the channel; the others need nothing there.
  const std::unique_ptr<Channel> channel = options.provider == "tcp" ? provider->open(setup, &why) : nullptr;
  send_all(socket, "r", 1);

  for (Command command; ::recv(socket, &command, sizeof(command), MSG_WAITALL) == sizeof(command);) {
    if (command.what == 'w') __atomic_store_n(&host.words[command.a], command.b, __ATOMIC_RELEASE);
    if (command.what == 'r') host.remove(static_cast<uint32_t>(command.a));
    if (command.what == 'e' && channel) channel->shut_down();
    if (command.what == 'c') {
      for (const auto& pool : pools) MUST(ftruncate(pool->fd(), static_cast<off_t>(pool->bytes().size() / 2)) == 0);
    }
    send_all(socket, "d", 1);
  }
  _exit(0);
}

PeerProcess::PeerProcess(PeerOptions options) {
  int sockets[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  pid_ = fork();
  MUST(pid_ >= 0);
  if (pid_ == 0) {
    ::close(sockets[0]);
    serve(sockets[1], options);
  }
  ::close(sockets[1]);
  socket_ = UniqueFd(sockets[0]);

  uint32_t length = 0;
  receive_all(socket_.get(), &length, sizeof(length));
  setup_.advertisement.resize(length);
  if (length != 0) receive_all(socket_.get(), setup_.advertisement.data(), length);
  setup_.lease_table = receive_news(socket_.get(), UINT32_MAX);
  auto regions = std::make_shared<RemoteRegionMap>();
  for (uint32_t i = 0; i < options.regions.size(); ++i) regions->emplace(i, receive_news(socket_.get(), i));
  setup_.regions = std::move(regions);
  setup_.peer = "peer";
  setup_.session = random_id();
  random_bytes(std::as_writable_bytes(std::span(setup_.secret)));
  setup_.initiator = true;
  setup_.unix_socket = true;
  setup_.pid = pid_;
  setup_.remote_host = "127.0.0.1";
  Introduction introduction{setup_.session, setup_.secret};
  send_all(socket_.get(), &introduction, sizeof(introduction));
  char ready = 0;
  receive_all(socket_.get(), &ready, 1);
}

PeerProcess::~PeerProcess() { kill(SIGKILL); }

void PeerProcess::kill(int signal) {
  if (pid_ < 0) return;
  ::kill(pid_, signal);
  if (signal == SIGSTOP) ::waitpid(pid_, nullptr, WUNTRACED);  // a thread on another CPU stops a moment later
  if (signal != SIGKILL) return;
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void PeerProcess::ask(char what, uint64_t a, uint64_t b) {
  Command command{what, a, b};
  send_all(socket_.get(), &command, sizeof(command));
  char done = 0;
  receive_all(socket_.get(), &done, 1);
}

void PeerProcess::set_word(uint64_t index, uint64_t value) { ask('w', index, value); }
void PeerProcess::remove_region(uint32_t index) { ask('r', index); }
void PeerProcess::cut_files() { ask('c'); }
void PeerProcess::end_session() { ask('e'); }

}  // namespace nxl::kv
