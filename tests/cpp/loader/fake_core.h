// SPDX-License-Identifier: Apache-2.0
// A fixture on libfake_nrt.so: the runtime of this process is the fake, the tests of one process share it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "fake_nrt/fake_nrt.h"
#include "loader/core_queue.h"
#include "loader/executable.h"
#include "nrt/tensor.h"

namespace nxl::test {

inline void use_fake(const char* runtime) {
  setenv("NEURON_LIBTORCH_RUNTIME", runtime, 1);
  setenv("NEURON_LIBTORCH_NRT_LIBRARY", FAKE_NRT_LIBRARY, 1);
}

// A device tensor of `bytes` bytes, all of them `value`.
inline nrt::Tensor filled(size_t bytes, uint8_t value) {
  nrt::Tensor tensor = nrt::Tensor::allocate_device(nrt::Runtime::get(), 0, bytes);
  std::memset(tensor.address(), value, bytes);
  return tensor;
}

inline uint8_t first_byte(const nrt::Tensor& tensor) { return *static_cast<const uint8_t*>(tensor.address()); }

class FakeCore : public testing::Test {
 protected:
  void SetUp() override {
    use_fake("host");
    fake_nrt().reset();
  }
  void TearDown() override {
    fake_nrt().set_completion_query_status(NRT_SUCCESS);
    for (int unit = 0; unit < 5; ++unit) fake_nrt().complete(static_cast<nrta_xu_t>(unit), 1000000);
    loader::CoreQueue* queue = loader::CoreQueue::find(0);
    if (queue != nullptr) {
      EXPECT_TRUE(queue->drain().is_ok());
      queue->take_error();
    }
    EXPECT_EQ(fake_nrt().violations(), std::vector<std::string>());
  }

  std::shared_ptr<loader::Executable> load_add_one(const std::string& name = "add_one") {
    return loader::Executable::load(make_neff(name, {{{"input0", 4}}, {{"output0", 4}}, {}}), 0);
  }
  Status run(loader::Executable& executable, const nrt::Tensor& input, const nrt::Tensor& output,
             uint64_t* ticket = nullptr) {
    uint64_t ignored = 0;
    const std::array<nrt_tensor_t*, 1> inputs = {input.get()};
    const std::array<nrt_tensor_t*, 1> outputs = {output.get()};
    return executable.run(inputs, outputs, ticket != nullptr ? ticket : &ignored);
  }
};

}  // namespace nxl::test
