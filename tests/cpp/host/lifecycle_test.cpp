// SPDX-License-Identifier: Apache-2.0
// Life cycle: init once, closed after close, cores and their claims, fork, exit with work in flight.
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "device.h"

namespace nxl::host::testing {
namespace {

constexpr int64_t kBig = 1 << 17;  // f32 elements: work that takes a while

// A folder of claims for one test, so that other work on this machine does not meddle. Removed when this process ends.
std::string claim_folder() {
  struct Folders {
    ~Folders() {
      for (const std::string& path : paths) std::filesystem::remove_all(path);
    }
    std::vector<std::string> paths;
  };
  static Folders folders;
  char path[] = "/tmp/nrt-host-claims-XXXXXX";
  folders.paths.push_back(mkdtemp(path));
  return folders.paths.back();
}

TEST(Lifecycle, CallsBeforeInitAreRefusedAndCountsAnswer) {
  NXL_FRESH_PROCESS();
  uint32_t count = 0;
  EXPECT_EQ(NRT_SUCCESS, nrt_get_visible_vnc_count(&count));
  EXPECT_EQ(2u, count);
  EXPECT_EQ(NRT_SUCCESS, nrt_get_total_vnc_count(&count));
  EXPECT_EQ(64u, count);
  nrt_tensor_t* tensor = nullptr;
  EXPECT_EQ(NRT_UNINITIALIZED, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 4, "x", &tensor));
  EXPECT_EQ(nullptr, tensor);
  nrt_instance_info_t info{};
  EXPECT_EQ(NRT_UNINITIALIZED, nrt_get_instance_info(&info, sizeof(info)));
}

TEST(Lifecycle, InitWorksOnce) {
  NXL_FRESH_PROCESS();
  open_runtime();
  EXPECT_EQ(NRT_INVALID, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", ""));
  DeviceTensor still_working(64);
  EXPECT_EQ(64u, nrt_tensor_get_size(still_working.get()));
}

TEST(Lifecycle, EverythingIsClosedAfterCloseAndFreeingIsHarmless) {
  NXL_FRESH_PROCESS();
  open_runtime();
  const auto neff = copy_neff(4);
  nrt_model_t* model = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_load(neff.data(), neff.size(), 0, -1, &model));
  nrt_tensor_t* tensor = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 16, "x", &tensor));
  auto* va = static_cast<float*>(nrt_tensor_get_va(tensor));
  nrt_tensor_set_t* set = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_allocate_tensor_set(&set));
  ASSERT_EQ(NRT_SUCCESS, nrt_add_tensor_to_tensor_set(set, "input0", tensor));
  nrta_error_tracker_t* tracker = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrta_error_tracker_create(0, &tracker));
  nrt_tensor_info_array_t* info = nullptr;
  ASSERT_EQ(NRT_SUCCESS, nrt_get_model_tensor_info(model, &info));
  nrt_close();
  nrt_close();

  va[0] = 1;  // memory of a tensor that is alive stays mapped
  float value = 0;
  uint32_t count = 0;
  nrta_seq_t seq = 0;
  bool done = false;
  int fd = -1;
  EXPECT_EQ(NRT_CLOSED, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", ""));
  EXPECT_EQ(NRT_CLOSED, nrt_get_visible_vnc_count(&count));
  EXPECT_EQ(NRT_CLOSED, nrt_load(neff.data(), neff.size(), 0, -1, &model));
  EXPECT_EQ(NRT_CLOSED, nrt_tensor_read(tensor, &value, 0, 4));
  EXPECT_EQ(NRT_CLOSED, nrt_tensor_write(tensor, &value, 0, 4));
  EXPECT_EQ(NRT_CLOSED, nrt_execute(model, set, set));
  EXPECT_EQ(NRT_CLOSED, nrta_execute_schedule(model, set, set, 0, nullptr, &seq));
  EXPECT_EQ(NRT_CLOSED, nrta_is_completed(seq, &done));
  EXPECT_EQ(NRT_CLOSED, nrt_get_dmabuf_fd(reinterpret_cast<uint64_t>(va), 4, &fd));
  EXPECT_EQ(NRT_CLOSED, nrt_free_model_tensor_info(info));
  EXPECT_EQ(NRT_CLOSED, nrt_unload(model));
  EXPECT_EQ(0u, nrt_tensor_get_size(tensor));
  EXPECT_EQ(nullptr, nrt_tensor_get_va(tensor));
  nrt_destroy_tensor_set(&set);
  nrta_error_tracker_destroy(tracker);
  nrt_tensor_free(&tensor);
  EXPECT_EQ(nullptr, tensor);
}

TEST(Lifecycle, CloseDropsWaitingWorkAndWakesWaiters) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_FAULTS", "delay_ms:execute=300"});
  open_runtime();
  LoadedModel copy(copy_neff(4));
  DeviceTensor x(16), y(16);
  NamedSet in("input", {x.get()}), out("output", {y.get()});
  nrta_seq_t seq = 0;
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(NRT_SUCCESS, nrta_execute_schedule(copy.get(), in.get(), out.get(), 0, nullptr, &seq));
  int fd = -1;
  ASSERT_EQ(NRT_SUCCESS, nrta_get_completion_handle(seq, &fd));
  std::thread waiter([&] { EXPECT_EQ(NRT_CLOSED, nrt_execute(copy.get(), in.get(), out.get())); });
  std::thread output_waiter([&] { EXPECT_EQ(NRT_CLOSED, nrt_tensor_check_output_completion(y.get(), -1, 100)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  nrt_close();
  waiter.join();
  output_waiter.join();
  pollfd poller{fd, POLLIN, 0};
  EXPECT_EQ(1, poll(&poller, 1, 10'000));  // nothing will complete any more, and the poller hears of it
  close(fd);
}

TEST(Lifecycle, VersionAndInstance) {
  NXL_FRESH_PROCESS();
  nrt_version_t version{};
  ASSERT_EQ(NRT_SUCCESS, nrt_get_version(&version, sizeof(version)));
  EXPECT_EQ(2u, version.rt_major);
  uint64_t major_only = 0;  // an older, shorter struct
  ASSERT_EQ(NRT_SUCCESS, nrt_get_version(reinterpret_cast<nrt_version_t*>(&major_only), sizeof(major_only)));
  EXPECT_EQ(2u, major_only);
  EXPECT_EQ(NRT_INVALID, nrt_get_version(nullptr, sizeof(version)));
  open_runtime();
  nrt_instance_info_t info{};
  ASSERT_EQ(NRT_SUCCESS, nrt_get_instance_info(&info, sizeof(info)));
  EXPECT_STREQ("host", info.arch_name);
  EXPECT_EQ(0u, info.family);
}

TEST(Lifecycle, MemoryStatisticsFollowAllocation) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB", "3"});
  open_runtime();
  nrt_vnc_memory_stats_t stats{};
  size_t written = 0;
  ASSERT_EQ(NRT_SUCCESS, nrt_get_vnc_memory_stats(1, &stats, sizeof(stats), &written));
  EXPECT_EQ(size_t{3} << 20, stats.bytes_limit);
  EXPECT_EQ(0u, stats.bytes_used);
  {
    DeviceTensor x(1000, 1);
    EXPECT_EQ(1024u, memory_used(1));
    EXPECT_EQ(0u, memory_used(0));
  }
  EXPECT_EQ(0u, memory_used(1));
  stats = {7, 7};
  ASSERT_EQ(NRT_SUCCESS, nrt_get_vnc_memory_stats(0, &stats, sizeof(size_t), &written));
  EXPECT_EQ(sizeof(size_t), written);
  EXPECT_EQ(7u, stats.bytes_limit);  // beyond the caller's struct nothing is written
  EXPECT_EQ(NRT_INVALID, nrt_get_vnc_memory_stats(2, &stats, sizeof(stats), &written));
}

TEST(Cores, VisibleListTakesRangesInOrder) {
  NXL_FRESH_PROCESS({"NEURON_RT_VISIBLE_CORES", "5,1-2"}, {"NEURON_LIBTORCH_HOST_CLAIM_DIR", claim_folder()});
  uint32_t count = 0;
  ASSERT_EQ(NRT_SUCCESS, nrt_get_visible_vnc_count(&count));
  EXPECT_EQ(3u, count);
  open_runtime();
  const uint32_t expected[] = {5, 1, 2};
  for (int i = 0; i < 3; ++i) {
    uint32_t id = 0;
    ASSERT_EQ(NRT_SUCCESS, nrt_host_device_id_get(i, &id));
    EXPECT_EQ(expected[i], id);
  }
  uint32_t id = 0;
  EXPECT_EQ(NRT_INVALID, nrt_host_device_id_get(3, &id));
  EXPECT_EQ(NRT_INVALID, nrt_host_device_id_get(-1, &id));
}

class BadCoreList : public ::testing::TestWithParam<const char*> {};
TEST_P(BadCoreList, IsInvalidAndInitCanBeTriedAgain) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_CLAIM_DIR", claim_folder()});
  setenv("NEURON_RT_VISIBLE_CORES", GetParam(), 1);
  uint32_t count = 0;
  EXPECT_EQ(NRT_INVALID, nrt_get_visible_vnc_count(&count));
  EXPECT_EQ(NRT_INVALID, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", ""));
  setenv("NEURON_RT_VISIBLE_CORES", "0", 1);
  EXPECT_EQ(NRT_SUCCESS, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", ""));
}
INSTANTIATE_TEST_SUITE_P(Lists, BadCoreList,
                         ::testing::Values("a", "0,", ",0", "1-0", "64", "-1", "0-64", "0,0", "0-2,1", "0 1", "1-",
                                           "0x1"));

TEST(Cores, BadNumbersInTheEnvironmentAreInvalid) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_CLAIM_DIR", claim_folder()});
  for (const char* name : {"NEURON_RT_NUM_CORES", "NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB",
                           "NEURON_LIBTORCH_HOST_THREADS_PER_CORE", "NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS"}) {
    for (const char* value : {"0", "-1", "many", "99999999999999999999"}) {
      setenv(name, value, 1);
      EXPECT_EQ(NRT_INVALID, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", "")) << name << "=" << value;
    }
    unsetenv(name);
  }
  EXPECT_EQ(NRT_SUCCESS, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", ""));
}

// Held by the tests below: takes its cores, says so through the file READY, and stays.
TEST(Cores, DISABLED_Holder) {
  if (!in_fresh_process()) GTEST_SKIP() << "runs as another process of the tests below";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  open_runtime();
  std::filesystem::create_directory(std::string(std::getenv("NEURON_LIBTORCH_HOST_CLAIM_DIR")) + "/ready");
  for (;;) pause();
}

struct Holder {
  Holder(const std::string& folder, const Environment& more) {
    Environment environment = more;
    environment["NEURON_LIBTORCH_HOST_CLAIM_DIR"] = folder;
    pid = start_self("Cores.DISABLED_Holder", environment);
    for (int i = 0; i < 2000 && !std::filesystem::exists(folder + "/ready"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(std::filesystem::exists(folder + "/ready"));
  }
  void end() {
    kill(pid, SIGKILL);
    EXPECT_EQ(-SIGKILL, wait_for_exit(pid));
  }
  pid_t pid;
};

TEST(Cores, SecondProcessOnACoreIsBusyUntilTheFirstEnds) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_CLAIM_DIR", claim_folder()});
  Holder holder(std::getenv("NEURON_LIBTORCH_HOST_CLAIM_DIR"), {{"NEURON_RT_VISIBLE_CORES", "3"}});
  setenv("NEURON_RT_VISIBLE_CORES", "2-3", 1);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(NRT_EXEC_NC_BUSY, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", ""));
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(std::string::npos, line.find("core 3 is in use by process " + std::to_string(holder.pid))) << line;
  setenv("NEURON_RT_VISIBLE_CORES", "2", 1);  // the refused try has not kept core 2
  holder.end();
  setenv("NEURON_RT_VISIBLE_CORES", "2-3", 1);
  EXPECT_EQ(NRT_SUCCESS, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", ""));
}

TEST(Cores, NumberOfCoresTakesFreeOnes) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_CLAIM_DIR", claim_folder()});
  Holder holder(std::getenv("NEURON_LIBTORCH_HOST_CLAIM_DIR"), {{"NEURON_RT_NUM_CORES", "2"}});
  setenv("NEURON_RT_NUM_CORES", "63", 1);
  EXPECT_EQ(NRT_EXEC_NC_BUSY, nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", ""));
  setenv("NEURON_RT_NUM_CORES", "2", 1);
  open_runtime();
  uint32_t id = 0;
  ASSERT_EQ(NRT_SUCCESS, nrt_host_device_id_get(0, &id));
  EXPECT_EQ(2u, id);
  holder.end();
}

TEST(Cores, DefaultCoresArePrivate) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_CLAIM_DIR", claim_folder()});
  Holder holder(std::getenv("NEURON_LIBTORCH_HOST_CLAIM_DIR"), {});
  open_runtime();
  DeviceTensor x(16);
  holder.end();
}

TEST(Cores, CloseGivesTheClaimBack) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_CLAIM_DIR", claim_folder()}, {"NEURON_RT_VISIBLE_CORES", "0"});
  open_runtime();
  nrt_close();
  Holder holder(std::getenv("NEURON_LIBTORCH_HOST_CLAIM_DIR"), {});
  holder.end();
}

TEST(Fork, ChildIsClosedAndHarmless) {
  NXL_FRESH_PROCESS({"NEURON_LIBTORCH_HOST_CLAIM_DIR", claim_folder()}, {"NEURON_RT_VISIBLE_CORES", "0"});
  open_runtime();
  LoadedModel add(accumulate_neff(kBig));
  DeviceTensor sum(std::vector<float>(kBig, 0.0f)), one(std::vector<float>(kBig, 1.0f));
  NamedSet in("input", {sum.get(), one.get()}), out("output", {sum.get()});
  nrta_seq_t seq = 0;
  for (int i = 0; i < 4; ++i) nrta_execute_schedule(add.get(), in.get(), out.get(), 0, nullptr, &seq);
  const pid_t child = fork();  // the core's thread holds its mutex now and then
  if (child == 0) {
    alarm(20);
    bool closed = nrt_execute(add.get(), in.get(), out.get()) == NRT_CLOSED;
    float value = 0;
    closed &= nrt_tensor_read(sum.get(), &value, 0, 4) == NRT_CLOSED;
    closed &= nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", "") == NRT_CLOSED;
    nrt_tensor_t* tensor = sum.get();
    nrt_tensor_free(&tensor);
    nrt_tensor_set_t* set = in.get();
    nrt_destroy_tensor_set(&set);
    nrt_close();
    exit(closed ? 0 : 1);  // exit, not _exit: the exit handlers must not hang either
  }
  EXPECT_EQ(0, wait_for_exit(child));
  ASSERT_TRUE(poll_complete(seq));
  EXPECT_EQ(4.0f, sum.read()[0]);
}

TEST(Fork, ChildOfAnUninitialisedProcessMayOpen) {
  NXL_FRESH_PROCESS();
  const pid_t child = fork();
  if (child == 0) _exit(nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", "") == NRT_SUCCESS ? 0 : 1);
  EXPECT_EQ(0, wait_for_exit(child));
  open_runtime();
}

TEST(Exit, DISABLED_WithWorkInFlight) {
  if (!in_fresh_process()) GTEST_SKIP() << "runs as another process of the test below";
  alarm(30);
  open_runtime();
  LoadedModel add(accumulate_neff(kBig));
  auto* sum = new DeviceTensor(std::vector<float>(kBig, 0.0f));
  auto* one = new DeviceTensor(std::vector<float>(kBig, 1.0f));
  NamedSet in("input", {sum->get(), one->get()}), out("output", {sum->get()});
  nrta_seq_t seq = 0;
  for (int i = 0; i < 8; ++i) nrta_execute_schedule(add.get(), in.get(), out.get(), 0, nullptr, &seq);
  exit(42);
}

TEST(Exit, WithWorkInFlightNeitherHangsNorCrashes) {
  EXPECT_EQ(42, wait_for_exit(start_self("Exit.DISABLED_WithWorkInFlight", {})));
}

}  // namespace
}  // namespace nxl::host::testing
