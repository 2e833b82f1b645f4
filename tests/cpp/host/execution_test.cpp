// SPDX-License-Identifier: Apache-2.0
// Execution: synchronous and queued, order, depth, completion, errors, bindings.
#include <atomic>
#include <thread>

#include "device.h"

namespace nxl::host::testing {
namespace {

constexpr int64_t kBig = 1 << 16;  // f32 elements: too large to run on the caller's thread

NRT_STATUS schedule(const LoadedModel& model, const NamedSet& in, const NamedSet& out, nrta_seq_t* seq,
                    nrta_error_tracker_t* tracker = nullptr) {
  return nrta_execute_schedule(model.get(), in.get(), out.get(), 0, tracker, seq);
}

TEST(Execute, CopiesAndAddsSynchronously) {
  NXL_FRESH_PROCESS();
  open_runtime();
  LoadedModel copy(copy_neff(4));
  LoadedModel add(add_neff(4));
  DeviceTensor x(std::vector<float>{1, 2, 3, 4}), y(16), z(16);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(copy.get(), in.get(), out.get()));
  EXPECT_EQ((std::vector<float>{1, 2, 3, 4}), y.read());
  NamedSet sum_in("input", {x.get(), y.get()}), sum_out("output", {z.get()});
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(add.get(), sum_in.get(), sum_out.get()));
  EXPECT_EQ((std::vector<float>{2, 4, 6, 8}), z.read());
}

TEST(Execute, RepeatsInOneCall) {
  NXL_FRESH_PROCESS();
  open_runtime();
  LoadedModel add(accumulate_neff(2));
  DeviceTensor sum(std::vector<float>{0, 1}), one(std::vector<float>{1, 1});
  NamedSet in("input", {sum.get(), one.get()}), out("output", {sum.get()});
  ASSERT_EQ(NRT_SUCCESS, nrt_execute_repeat(add.get(), in.get(), out.get(), 5));
  EXPECT_EQ((std::vector<float>{5, 6}), sum.read());
  EXPECT_EQ(NRT_INVALID, nrt_execute_repeat(add.get(), in.get(), out.get(), 0));
}

// On the core's thread and, where small programs may, on the caller's: order and numbers are the same.
class QueuedOrder : public ::testing::TestWithParam<std::pair<int64_t, const char*>> {};
TEST_P(QueuedOrder, WorkRunsInOrderAndCompletes) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_INLINE", GetParam().second});
  open_runtime();
  const int64_t elements = GetParam().first;
  LoadedModel add(accumulate_neff(elements));
  DeviceTensor sum(std::vector<float>(elements, 0.0f)), one(std::vector<float>(elements, 1.0f));
  NamedSet in("input", {sum.get(), one.get()}), out("output", {sum.get()});
  std::vector<float> before(elements), after(elements);
  nrta_seq_t seq = 0, read = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(NRT_SUCCESS, schedule(add, in, out, &seq));
    EXPECT_EQ(static_cast<uint64_t>(NRTA_XU_COMPUTE), seq >> 48);
    EXPECT_EQ(static_cast<uint64_t>(i + 1), seq & 0xffffffffff);
  }
  ASSERT_EQ(NRT_SUCCESS, nrta_tensor_read(before.data(), sum.get(), 0, elements * 4, 0, nullptr, &read));
  ASSERT_EQ(NRT_SUCCESS, schedule(add, in, out, &seq));
  ASSERT_EQ(NRT_SUCCESS, nrta_tensor_read(after.data(), sum.get(), 0, elements * 4, 0, nullptr, &read));
  ASSERT_TRUE(poll_complete(read));
  EXPECT_TRUE(is_complete(seq));
  EXPECT_EQ(std::vector<float>(elements, 3.0f), before);
  EXPECT_EQ(std::vector<float>(elements, 4.0f), after);
  nrta_seq_t last = 0;
  ASSERT_EQ(NRT_SUCCESS, nrta_get_sequence(0, NRTA_XU_COMPUTE, 0, &last));
  EXPECT_EQ(seq, last);
}
INSTANTIATE_TEST_SUITE_P(Sizes, QueuedOrder,
                         ::testing::Values(std::pair(int64_t{4}, "0"), std::pair(int64_t{4}, "1"),
                                           std::pair(kBig, "1")));

TEST(Execute, SynchronousCallsJoinTheQueue) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "delay_ms:execute=20"},
                    {"NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS", "2"});
  open_runtime();
  LoadedModel add(accumulate_neff(4));
  DeviceTensor sum(std::vector<float>(4, 0.0f)), one(std::vector<float>(4, 1.0f));
  NamedSet in("input", {sum.get(), one.get()}), out("output", {sum.get()});
  nrta_seq_t seq = 0;
  ASSERT_EQ(NRT_SUCCESS, schedule(add, in, out, &seq));
  ASSERT_EQ(NRT_SUCCESS, schedule(add, in, out, &seq));
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(add.get(), in.get(), out.get()));  // waits its turn, also in a full queue
  EXPECT_TRUE(is_complete(seq));
  EXPECT_EQ(std::vector<float>(4, 3.0f), sum.read());
}

TEST(Execute, QueueIsFullAtItsDepthAndTakesWorkAgain) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "delay_ms:execute=100"});
  open_runtime();
  LoadedModel copy(copy_neff(4));
  DeviceTensor x(16), y(16);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  nrta_seq_t seq = 0, refused = 77;
  for (int i = 0; i < 8; ++i) ASSERT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  EXPECT_EQ(NRT_QUEUE_FULL, schedule(copy, in, out, &refused));
  EXPECT_EQ(77u, refused);
  EXPECT_FALSE(is_complete(seq));
  ASSERT_EQ(NRT_SUCCESS, nrt_async_drain_queued_execs(0));
  EXPECT_TRUE(is_complete(seq));
  EXPECT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  ASSERT_TRUE(poll_complete(seq));
}

TEST(Execute, DepthFollowsTheVariable) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "delay_ms:execute=100"},
                    {"NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS", "2"});
  open_runtime();
  LoadedModel copy(copy_neff(4));
  DeviceTensor x(16), y(16);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  nrta_seq_t seq = 0;
  EXPECT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  EXPECT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  EXPECT_EQ(NRT_QUEUE_FULL, schedule(copy, in, out, &seq));
}

TEST(Execute, CoresWorkIndependently) {
  NXL_FRESH_PROCESS();
  open_runtime();
  std::atomic<int> failures{0};
  const auto worker = [&](int core) {
    LoadedModel add(accumulate_neff(kBig), core);
    DeviceTensor sum(std::vector<float>(kBig, 0.0f), core), one(std::vector<float>(kBig, 1.0f), core);
    NamedSet in("input", {sum.get(), one.get()}), out("output", {sum.get()});
    for (int round = 0; round < 5; ++round) {
      nrta_seq_t seq = 0;
      for (int i = 0; i < 4; ++i) failures += schedule(add, in, out, &seq) != NRT_SUCCESS;
      failures += !poll_complete(seq);
      failures += (seq >> 40 & 0xff) != static_cast<uint64_t>(core);
    }
    failures += sum.read() != std::vector<float>(kBig, 20.0f);
  };
  std::thread other(worker, 1);
  worker(0);
  other.join();
  EXPECT_EQ(0, failures);
}

TEST(Execute, ManyThreadsShareOneCore) {
  NXL_FRESH_PROCESS({"NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS", "4"}, {"NEURON_LIBTORCH_HOST_INLINE", "1"});
  open_runtime();
  LoadedModel small(accumulate_neff(16)), large(accumulate_neff(kBig));
  std::atomic<int> failures{0};
  const auto worker = [&](const LoadedModel& model, int64_t elements) {
    DeviceTensor sum(std::vector<float>(elements, 0.0f)), one(std::vector<float>(elements, 1.0f));
    NamedSet in("input", {sum.get(), one.get()}), out("output", {sum.get()});
    nrta_seq_t seq = 0;
    for (int i = 0; i < 20; ++i) {
      if (i % 4 == 3) {
        failures += nrt_execute(model.get(), in.get(), out.get()) != NRT_SUCCESS;
        continue;
      }
      NRT_STATUS status;
      while ((status = schedule(model, in, out, &seq)) == NRT_QUEUE_FULL) std::this_thread::yield();
      failures += status != NRT_SUCCESS;
    }
    failures += !poll_complete(seq);
    failures += sum.read() != std::vector<float>(elements, 20.0f);
  };
  std::thread a([&] { worker(small, 16); }), b([&] { worker(large, kBig); });
  worker(small, 16);
  a.join();
  b.join();
  EXPECT_EQ(0, failures);
}

TEST(Execute, ErrorsReachTheTrackerAndLaterWorkRuns) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "execute:EXEC_HW_ERR_HBM_UE@2,tensor_read:EXEC_HW_ERR_DMA_ABORT"});
  open_runtime();
  LoadedModel copy(copy_neff(4));
  DeviceTensor x(std::vector<float>(4, 3.0f)), y(16);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  nrta_error_tracker_t* tracker = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrta_error_tracker_create(0, &tracker));
  nrta_seq_t seq[3] = {}, read = 0;
  for (auto& each : seq) ASSERT_EQ(NRT_SUCCESS, schedule(copy, in, out, &each, tracker));
  float value = 0;
  ASSERT_EQ(NRT_SUCCESS, nrta_tensor_read(&value, y.get(), 0, 4, 0, tracker, &read));
  ASSERT_TRUE(poll_complete(read));
  EXPECT_TRUE(is_complete(seq[1]));  // failed work is complete too
  const nrta_error_t* errors = nullptr;
  size_t count = 0;
  ASSERT_EQ(NRT_SUCCESS, nrta_error_tracker_get_list(tracker, &errors, &count));
  ASSERT_EQ(2u, count);
  EXPECT_EQ(seq[1], errors[0].seq_id);
  EXPECT_EQ(static_cast<uint64_t>(NRT_EXEC_HW_ERR_HBM_UE), errors[0].error_code);
  EXPECT_EQ(read, errors[1].seq_id);
  EXPECT_EQ(static_cast<uint64_t>(NRT_EXEC_HW_ERR_DMA_ABORT), errors[1].error_code);
  ASSERT_EQ(NRT_SUCCESS, nrta_error_tracker_get_list(tracker, &errors, &count));
  EXPECT_EQ(0u, count);
  EXPECT_EQ(std::vector<float>(4, 3.0f), y.read());
  nrta_error_tracker_destroy(tracker);
  nrta_error_tracker_destroy(tracker);
  EXPECT_EQ(NRT_INVALID_HANDLE, nrta_error_tracker_get_list(tracker, &errors, &count));
  EXPECT_EQ(NRT_INVALID_HANDLE, schedule(copy, in, out, &read, tracker));
  EXPECT_EQ(NRT_INVALID, nrta_error_tracker_create(5, &tracker));
}

TEST(Execute, SynchronousErrorsAreReturned) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "execute:EXEC_UNIT_UNRECOVERABLE@1,nrt_tensor_write:HW_ERROR@1"});
  open_runtime();
  LoadedModel copy(copy_neff(4));
  DeviceTensor x(16), y(16);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  EXPECT_EQ(NRT_EXEC_UNIT_UNRECOVERABLE, nrt_execute(copy.get(), in.get(), out.get()));
  EXPECT_EQ(NRT_SUCCESS, nrt_execute(copy.get(), in.get(), out.get()));
  float value = 1;
  EXPECT_EQ(NRT_HW_ERROR, nrt_tensor_write(x.get(), &value, 0, 4));
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_write(x.get(), &value, 0, 4));
}

TEST(Execute, MemoryFreedWhileQueuedStaysUntilTheWorkIsDone) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "delay_ms:execute=100"});
  open_runtime();
  nrta_seq_t seq = 0;
  DeviceTensor y(16);
  {
    LoadedModel copy(copy_neff(4));
    DeviceTensor x(std::vector<float>(4, 8.0f));
    NamedSet in("input", {x.get()}), out("output", {y.get()});
    ASSERT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  }
  EXPECT_FALSE(is_complete(seq));
  EXPECT_LT(256u, memory_used());
  ASSERT_TRUE(poll_complete(seq));
  EXPECT_EQ(std::vector<float>(4, 8.0f), y.read());
  EXPECT_EQ(256u, memory_used());  // completion shows only after the work gave its memory back
}

TEST(Execute, BindingsAreTakenWhenScheduled) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "delay_ms:execute=50"});
  open_runtime();
  LoadedModel copy(copy_neff(1));
  DeviceTensor x(std::vector<float>{1}), other(std::vector<float>{2}), y(4), z(4);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  nrta_seq_t seq = 0;
  ASSERT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  in.add("input0", other.get());
  out.add("output0", z.get());
  ASSERT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  ASSERT_TRUE(poll_complete(seq));
  EXPECT_EQ(1.0f, y.read()[0]);
  EXPECT_EQ(2.0f, z.read()[0]);
}

TEST(Execute, OutputCompletionCounts) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "delay_ms:execute=30"});
  open_runtime();
  LoadedModel copy(copy_neff(4));
  DeviceTensor x(16), y(16);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  EXPECT_EQ(NRT_TIMEOUT, nrt_tensor_check_output_completion(y.get(), 1000, 1));
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_check_output_completion(y.get(), 0, 0));
  nrta_seq_t seq = 0;
  ASSERT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  ASSERT_EQ(NRT_SUCCESS, schedule(copy, in, out, &seq));
  EXPECT_EQ(NRT_SUCCESS, nrt_tensor_check_output_completion(y.get(), -1, 2));
  EXPECT_EQ(NRT_TIMEOUT, nrt_tensor_check_output_completion(x.get(), 0, 1));
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_reset_output_completion(y.get()));
  EXPECT_EQ(NRT_TIMEOUT, nrt_tensor_check_output_completion(y.get(), 0, 1));
}

TEST(Execute, SequencesThatWereNotGivenOutAreInvalid) {
  NXL_FRESH_PROCESS();
  open_runtime();
  nrta_seq_t seq = 0;
  bool done = false;
  int fd = -1;
  ASSERT_EQ(NRT_SUCCESS, nrta_get_sequence(1, NRTA_XU_COMPUTE, 0, &seq));
  EXPECT_TRUE(is_complete(seq));  // nothing was queued, so nothing is left to wait for
  EXPECT_EQ(NRT_INVALID, nrta_is_completed(seq + 1, &done));
  EXPECT_EQ(NRT_INVALID, nrta_is_completed(uint64_t{9} << 48, &done));
  EXPECT_EQ(NRT_INVALID, nrta_is_completed(~uint64_t{0}, &done));
  EXPECT_EQ(NRT_INVALID, nrta_is_completed(seq | uint64_t{7} << 40, &done));
  EXPECT_EQ(NRT_INVALID, nrta_get_completion_handle(seq + 1, &fd));
  EXPECT_EQ(NRT_INVALID, nrta_get_sequence(2, NRTA_XU_COMPUTE, 0, &seq));
  EXPECT_EQ(NRT_INVALID, nrta_get_sequence(0, static_cast<nrta_xu_t>(7), 0, &seq));
  EXPECT_EQ(NRT_INVALID, nrta_get_sequence(0, NRTA_XU_COMPUTE, 1, &seq));
  EXPECT_EQ(NRT_INVALID, nrt_async_drain_queued_execs(2));
}

class Bindings : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const NRT_STATUS status = nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", "");
    ASSERT_TRUE(status == NRT_SUCCESS || status == NRT_INVALID);
  }
  // INVALID, with a line on stderr that has every one of `parts`.
  static void expect_refused(const LoadedModel& model, const NamedSet& in, const NamedSet& out,
                             const std::vector<std::string>& parts) {
    nrta_seq_t seq = 0;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(NRT_INVALID, schedule(model, in, out, &seq));
    EXPECT_EQ(NRT_INVALID, nrt_execute(model.get(), in.get(), out.get()));
    const std::string log = ::testing::internal::GetCapturedStderr();
    for (const std::string& part : parts) EXPECT_NE(std::string::npos, log.find(part)) << log;
  }
};

TEST_F(Bindings, MissingUnknownAndWrongSizeAreNamed) {
  LoadedModel add(add_neff(4));
  DeviceTensor x(16), y(16), z(16), small(12), other(16, 1);
  NamedSet good_in("input", {x.get(), y.get()}), good_out("output", {z.get()});
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(add.get(), good_in.get(), good_out.get()));
  expect_refused(add, NamedSet("input", {x.get()}), good_out, {"input1"});
  expect_refused(add, NamedSet("input", {x.get(), y.get(), z.get()}), good_out, {"input2"});
  expect_refused(add, NamedSet("input", {x.get(), small.get()}), good_out, {"input1", "12", "16"});
  expect_refused(add, NamedSet("input", {x.get(), other.get()}), good_out, {"input1", "core 1", "core 0"});
  expect_refused(add, good_in, NamedSet("out", {z.get()}), {"output0"});
  expect_refused(add, good_in, NamedSet("output", {small.get()}), {"output0", "12"});
}

TEST_F(Bindings, FreedTensorIsReportedNotTouched) {
  LoadedModel copy(copy_neff(4));
  DeviceTensor y(16);
  auto x = std::make_unique<DeviceTensor>(16);
  NamedSet in("input", {x->get()}), out("output", {y.get()});
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(copy.get(), in.get(), out.get()));
  x.reset();
  expect_refused(copy, in, out, {"input0", "freed"});
}

TEST_F(Bindings, AliasedOutputIsItsInput) {
  LoadedModel add(accumulate_neff(4));
  DeviceTensor sum(std::vector<float>(4, 1.0f)), one(std::vector<float>(4, 1.0f)), other(16);
  NamedSet in("input", {sum.get(), one.get()});
  expect_refused(add, in, NamedSet("output", {other.get()}), {"output0", "input0"});
  nrt_tensor_t* same = nullptr;  // another handle on the same memory will do
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_allocate_slice(sum.get(), 0, 16, "same", &same));
  NamedSet out("output", {same});
  EXPECT_EQ(NRT_SUCCESS, nrt_execute(add.get(), in.get(), out.get()));
  EXPECT_EQ(std::vector<float>(4, 2.0f), sum.read());
  nrt_tensor_free(&same);
}

TEST_F(Bindings, OutputsShareNoMemoryWithInputs) {
  LoadedModel add(add_neff(4));
  DeviceTensor base(64), x(16);
  nrt_tensor_t *left = nullptr, *right = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_allocate_slice(base.get(), 0, 16, "left", &left));
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_allocate_slice(base.get(), 12, 16, "right", &right));
  expect_refused(add, NamedSet("input", {left, x.get()}), NamedSet("output", {right}), {"output0", "input0"});
  expect_refused(add, NamedSet("input", {x.get(), left}), NamedSet("output", {left}), {"output0", "input1"});
  NamedSet in("input", {left, right}), out("output", {x.get()});  // inputs may share
  EXPECT_EQ(NRT_SUCCESS, nrt_execute(add.get(), in.get(), out.get()));
  nrt_tensor_free(&left);
  nrt_tensor_free(&right);
}

TEST_F(Bindings, AttachedBuffersAreFollowed) {
  LoadedModel copy(copy_neff(1));
  nrt_tensor_t* x = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_allocate_empty("x", &x));
  DeviceTensor y(4);
  NamedSet in("input", {x}), out("output", {y.get()});
  expect_refused(copy, in, out, {"no storage"});
  float first = 3, second = 4;
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_attach_buffer(x, &first, 4));
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(copy.get(), in.get(), out.get()));
  EXPECT_EQ(3.0f, y.read()[0]);
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_attach_buffer(x, &second, 4));
  ASSERT_EQ(NRT_SUCCESS, nrt_execute(copy.get(), in.get(), out.get()));
  EXPECT_EQ(4.0f, y.read()[0]);
  nrt_tensor_free(&x);
}

}  // namespace
}  // namespace nxl::host::testing
