// SPDX-License-Identifier: Apache-2.0
// Two agents' worth of providers without agents: memory, tables, and a peer that is a real process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kv/provider.h"

namespace nxl::kv {

// Memory in a memfd of its own, sealed against a change of size unless told otherwise.
class Pool {
 public:
  explicit Pool(uint64_t bytes, bool sealed = true);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  std::span<std::byte> bytes() const { return {base_, bytes_}; }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::byte* base_;
  uint64_t bytes_;
};

// The byte at `offset` of region `region` of every test peer.
std::byte pattern(uint32_t region, uint64_t offset);
void fill_pattern(uint32_t region, std::span<std::byte> bytes);

class TestHost final : public ProviderHost {
 public:
  explicit TestHost(std::string name = "reader") : name_(std::move(name)) {}
  uint32_t add(std::span<std::byte> bytes, bool readable = true);
  void remove(uint32_t index);

  std::shared_ptr<const RegionMap> regions() const override;
  uint64_t lease_word(uint64_t index) const override {
    return index < words.size() ? __atomic_load_n(&words[index], __ATOMIC_ACQUIRE) : 0;
  }
  std::string bind_host() const override { return "127.0.0.1"; }
  bool data_checksum() const override { return checksum; }
  uint32_t copy_threads() const override { return 1; }
  const std::string& agent_name() const override { return name_; }

  std::span<uint64_t> words;
  bool checksum = false;

 private:
  const std::string name_;
  uint32_t next_ = 0;
  mutable std::mutex mutex_;
  std::shared_ptr<const RegionMap> regions_ = std::make_shared<RegionMap>();
};

struct PeerOptions {
  std::vector<uint64_t> regions{1 << 20};  // bytes of each, filled with pattern()
  std::string provider;
  uint64_t lease_words = 16;  // word i holds i + 1
  bool sealed = true;
  bool checksum = false;
};

// A child process with registered memory that serves one provider. Killed and reaped by the destructor.
class PeerProcess {
 public:
  explicit PeerProcess(PeerOptions options);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // What a reader's provider is told about this peer. The peer's end of the session is open.
  const ChannelSetup& setup() const { return setup_; }
  ChannelSetup& setup() { return setup_; }
  pid_t pid() const { return pid_; }
  void kill(int signal);  // SIGKILL also reaps

  // Run in the peer; each waits until it is done.
  void set_word(uint64_t index, uint64_t value);
  void remove_region(uint32_t index);
  void cut_files();    // its memfds are made shorter by half
  void end_session();  // shuts its channel down

 private:
  void ask(char what, uint64_t a = 0, uint64_t b = 0);
  [[noreturn]] static void serve(int socket, const PeerOptions& options);

  pid_t pid_ = -1;
  UniqueFd socket_;
  ChannelSetup setup_;
};

}  // namespace nxl::kv
