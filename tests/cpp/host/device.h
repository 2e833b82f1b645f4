// SPDX-License-Identifier: Apache-2.0
// The exported interface as the tests use it: owners of handles, and f32 data in and out.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fresh_process.h"
#include "nrt_abi.h"
#include "program_builder.h"

namespace nxl::host::testing {

inline void open_runtime() { ASSERT_EQ(NRT_SUCCESS, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "test", "test")); }

class DeviceTensor {
 public:
  explicit DeviceTensor(size_t bytes, int core = 0, nrt_tensor_placement_t placement = NRT_TENSOR_PLACEMENT_DEVICE) {
    EXPECT_EQ(NRT_SUCCESS, nrt_tensor_allocate(placement, core, bytes, "tensor", &handle_));
  }
  explicit DeviceTensor(const std::vector<float>& data, int core = 0) : DeviceTensor(data.size() * 4, core) {
    EXPECT_EQ(NRT_SUCCESS, nrt_tensor_write(handle_, data.data(), 0, data.size() * 4));
  }
  DeviceTensor(DeviceTensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  DeviceTensor& operator=(DeviceTensor&&) = delete;
  ~DeviceTensor() { nrt_tensor_free(&handle_); }

  nrt_tensor_t* get() const { return handle_; }
  std::vector<float> read() const {
    std::vector<float> data(nrt_tensor_get_size(handle_) / 4);
    EXPECT_EQ(NRT_SUCCESS, nrt_tensor_read(handle_, data.data(), 0, data.size() * 4));
    return data;
  }

 private:
  nrt_tensor_t* handle_ = nullptr;
};

class NamedSet {
 public:
  NamedSet(const std::string& prefix, const std::vector<nrt_tensor_t*>& tensors) {
    EXPECT_EQ(NRT_SUCCESS, nrt_allocate_tensor_set(&handle_));
    for (size_t i = 0; i < tensors.size(); ++i) add(prefix + std::to_string(i), tensors[i]);
  }
  NamedSet(const NamedSet&) = delete;
  NamedSet& operator=(const NamedSet&) = delete;
  ~NamedSet() { nrt_destroy_tensor_set(&handle_); }
  void add(const std::string& name, nrt_tensor_t* tensor) {
    EXPECT_EQ(NRT_SUCCESS, nrt_add_tensor_to_tensor_set(handle_, name.c_str(), tensor));
  }
  nrt_tensor_set_t* get() const { return handle_; }

 private:
  nrt_tensor_set_t* handle_ = nullptr;
};

class LoadedModel {
 public:
  explicit LoadedModel(const std::vector<std::byte>& neff, int core = 0) {
    EXPECT_EQ(NRT_SUCCESS, nrt_load(neff.data(), neff.size(), core, -1, &handle_));
  }
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;
  ~LoadedModel() { nrt_unload(handle_); }
  nrt_model_t* get() const { return handle_; }

 private:
  nrt_model_t* handle_ = nullptr;
};

inline bool is_complete(nrta_seq_t seq) {
  bool completed = false;
  EXPECT_EQ(NRT_SUCCESS, nrta_is_completed(seq, &completed));
  return completed;
}

// True once the completion descriptor is readable and the work complete; false after a minute. Asking for completion
// is also what a sanitizer sees as the order between the work and what the caller reads next.
inline bool poll_complete(nrta_seq_t seq) {
  int fd = -1;
  EXPECT_EQ(NRT_SUCCESS, nrta_get_completion_handle(seq, &fd));
  pollfd poller{fd, POLLIN, 0};
  const bool ready = poll(&poller, 1, 60'000) == 1;
  close(fd);
  return ready && is_complete(seq);
}

inline uint64_t memory_used(uint32_t core = 0) {
  nrt_vnc_memory_stats_t stats{};
  size_t written = 0;
  EXPECT_EQ(NRT_SUCCESS, nrt_get_vnc_memory_stats(core, &stats, sizeof(stats), &written));
  EXPECT_EQ(sizeof(stats), written);
  return stats.bytes_used;
}

}  // namespace nxl::host::testing
