// SPDX-License-Identifier: Apache-2.0
// A second process for the tests: this same program, started anew, which runs one agent and obeys lines on its stdin.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/agent.h"

namespace nxl::kv::test {

// Memory in a memfd of its own, so that shm can export it.
struct SharedMemory {
  explicit SharedMemory(size_t size) : bytes(size), fd(::memfd_create("kv-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) throw std::runtime_error("memfd");
    data = static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    if (data == MAP_FAILED) throw std::runtime_error("mmap");
  }
  ~SharedMemory() { ::munmap(data, bytes); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  RegionDescription describe(const std::string& name) const { return {data, bytes, name, -1, fd.get()}; }
  std::span<std::byte> span() const { return {data, bytes}; }

  size_t bytes;
  UniqueFd fd;
  std::byte* data;
};

// The byte that a region filled with `seed` has at `at`.
inline std::byte pattern(uint64_t seed, uint64_t at) {
  uint64_t x = (at / 8 + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
  x ^= x >> 29;
  return static_cast<std::byte>(x >> (at % 8 * 8));
}
inline void fill(std::span<std::byte> memory, uint64_t seed) {
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = pattern(seed, i);
}

// Entry of the second process: argv after "--kv-server".
int serve(const std::vector<std::string>& arguments);

using Settings = std::map<std::string, std::string>;

// The second process as a test holds it. Options: name, bind, key_file, providers (comma separated), region_bytes,
// fill (0: left empty), keep_alive, suspect_after, down_after, max_notification_bytes, touch (every page is
// there).
class ServerProcess {
 public:
  explicit ServerProcess(const Settings& options);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // One line there, one line back. Throws when the process is gone.
  std::string ask(const std::string& line);
  const std::string& endpoint() const { return endpoint_; }
  void signal(int number) const;            // SIGSTOP: returns once every thread has stopped
  void kill_now();                          // SIGKILL, and waits for it
  std::vector<uint16_t> listening() const;  // its TCP ports on 127.0.0.1

 private:
  std::string read_line();
  pid_t pid_ = -1;
  UniqueFd to_, from_;
  std::string buffer_;
  std::string endpoint_;
};

}  // namespace nxl::kv::test
