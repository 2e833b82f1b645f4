// SPDX-License-Identifier: Apache-2.0
// What the tests of nrt_async_sendrecv_* share: waiting, memory with a known content, and two connected cores.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device.h"

namespace nxl::host::testing {

using Comm = nrt_async_sendrecv_comm_t*;
using Request = nrt_async_sendrecv_request_t*;
inline constexpr const char* kHere = "127.0.0.1";
inline constexpr std::byte kBefore{0x11};

// A folder of its own for claims and rendezvous, so that tests of other processes are not met.
class Folder {
 public:
  Folder() { EXPECT_NE(nullptr, mkdtemp(path_.data())); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/nxl-sendrecv-XXXXXX";
};

inline bool eventually(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

inline bool wait_connected(Comm comm) {
  return eventually([&] {
    bool connected = false;
    const NRT_STATUS status = nrt_async_sendrecv_test_comm(comm, &connected);
    return connected || status != NRT_SUCCESS;
  });
}

struct Outcome {
  NRT_STATUS status = NRT_SUCCESS;
  bool done = false;
  size_t size = 0;
};

inline Outcome test_once(Request request) {
  Outcome outcome;
  outcome.status = nrt_async_sendrecv_test_request(request, &outcome.done, &outcome.size);
  return outcome;
}

inline Outcome wait_done(Request request) {
  Outcome outcome;
  EXPECT_TRUE(eventually([&] {
    outcome = test_once(request);
    return outcome.done || (outcome.status != NRT_SUCCESS && outcome.status != NRT_TIMEOUT);
  }));
  EXPECT_TRUE(outcome.done);
  return outcome;
}

inline std::vector<std::byte> pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 2654435761u + seed * 97 + (i >> 9)) >> 3);
  return data;
}

class Memory {
 public:
  explicit Memory(size_t bytes, int core = 0) : tensor_(bytes, core) { fill(kBefore); }
  nrt_tensor_t* get() const { return tensor_.get(); }
  size_t bytes() const { return nrt_tensor_get_size(get()); }
  void fill(std::byte value) { EXPECT_EQ(NRT_SUCCESS, nrt_tensor_memset(get(), 0, static_cast<int>(value), bytes())); }
  void write(const std::vector<std::byte>& data, size_t offset = 0) {
    EXPECT_EQ(NRT_SUCCESS, nrt_tensor_write(get(), data.data(), offset, data.size()));
  }
  std::vector<std::byte> read(size_t offset, size_t bytes) const {
    std::vector<std::byte> data(bytes);
    EXPECT_EQ(NRT_SUCCESS, nrt_tensor_read(get(), data.data(), offset, bytes));
    return data;
  }

 private:
  DeviceTensor tensor_;
};

inline Request send(Comm comm, const Memory& memory, size_t offset, size_t bytes) {
  Request request = nullptr;
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_send_tensor(memory.get(), offset, bytes, comm, &request));
  return request;
}

inline Request receive(Comm comm, const Memory& memory, size_t offset, size_t bytes) {
  Request request = nullptr;
  EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_recv_tensor(memory.get(), offset, bytes, comm, &request));
  return request;
}

// Cores 0 and 1 of this process, connected one way.
struct Pair {
  Pair() {
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_init(0));
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_init(1));
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_connect(kHere, 1, 0, &sender));
    EXPECT_EQ(NRT_SUCCESS, nrt_async_sendrecv_accept(kHere, 0, 1, &receiver));
    EXPECT_TRUE(wait_connected(sender));
    EXPECT_TRUE(wait_connected(receiver));
  }
  Comm sender = nullptr, receiver = nullptr;
};

inline Environment variables(Environment environment = {}) { return environment; }

// The rest of the test's body runs in a new process, with an open runtime and a claim folder of its own.
#define NXL_SENDRECV_PROCESS(...)                                         \
  if (!in_fresh_process()) {                                              \
    const Folder folder;                                                  \
    Environment environment = variables(__VA_ARGS__);                     \
    environment["NEURON_LIBTORCH_HOST_CLAIM_DIR"] = folder.path();        \
    ASSERT_EQ(0, wait_for_exit(start_self(current_test(), environment))); \
    return;                                                               \
  }                                                                       \
  open_runtime()

}  // namespace nxl::host::testing
