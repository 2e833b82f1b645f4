// SPDX-License-Identifier: Apache-2.0
// Collectives between processes, over shared memory and TCP, and what happens when a rank does not do its part.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "device.h"
#include "fresh_process.h"
#include "program_builder.h"

namespace nxl::host::testing {
namespace {

std::string free_address() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(0, bind(fd, reinterpret_cast<sockaddr*>(&address), size));
  EXPECT_EQ(0, getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size));
  close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

// Runs this test's body in `count` processes; returns their exit codes. Rank r finds itself through rank().
std::vector<int> exits_of(int count, Environment environment) {
  environment.emplace("NEURON_RT_ROOT_COMM_ID", free_address());
  environment.emplace("NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT", "60");
  environment.emplace("NEURON_RT_LOG_LEVEL", "ERROR");
  environment["NXL_TEST_RANKS"] = std::to_string(count);
  std::vector<pid_t> children;
  for (int r = 0; r < count; ++r) {
    environment["NXL_TEST_RANK"] = std::to_string(r);
    children.push_back(start_self(current_test(), environment));
  }
  std::vector<int> exits;
  for (const pid_t child : children) exits.push_back(wait_for_exit(child));
  return exits;
}

uint32_t rank() { return static_cast<uint32_t>(std::atoi(std::getenv("NXL_TEST_RANK"))); }
uint32_t ranks() { return static_cast<uint32_t>(std::atoi(std::getenv("NXL_TEST_RANKS"))); }

// One collective from input0 to output0.
std::vector<std::byte> collective_neff(const std::string& op, const std::string& groups, uint32_t replicas, int64_t in,
                                       int64_t out, const std::string& dtype = "f32", const std::string& kind = "") {
  const int64_t width = dtype == "f32" ? 4 : 2;
  ProgramBuilder builder;
  builder.input({in}, dtype);
  builder.output({out}, dtype);
  const int x = builder.dense(builder.input_buffer(0, static_cast<uint64_t>(in * width)), {in}, dtype);
  const int y = builder.dense(builder.output_buffer(0, static_cast<uint64_t>(out * width)), {out}, dtype);
  std::ostringstream step;
  step << R"({"op":")" << op << R"(","in":[)" << x << R"(],"out":[)" << y << R"(],"attrs":{"groups":)" << groups
       << R"(,"replicas":)" << replicas;
  if (!kind.empty()) step << R"(,"kind":")" << kind << '"';
  step << "}}";
  builder.step(step.str());
  return builder.neff(op);
}

struct Outcome {
  NRT_STATUS load = NRT_SUCCESS;
  NRT_STATUS run = NRT_SUCCESS;
  std::string text;
};

// Loads the NEFF as `place` of `count` and runs it once on the core; fills `out`.
Outcome run_collective(const std::vector<std::byte>& neff, uint32_t place, uint32_t count, const DeviceTensor& in,
                       const DeviceTensor& out, int core = 0) {
  Outcome outcome;
  nrt_model_t* model = nullptr;
  outcome.load = nrt_load_collectives(neff.data(), neff.size(), core, -1, place, count, &model);
  if (outcome.load != NRT_SUCCESS) return outcome;
  NamedSet inputs("input", {in.get()}), outputs("output", {out.get()});
  nrta_error_tracker_t* tracker = nullptr;
  EXPECT_EQ(NRT_SUCCESS, nrta_error_tracker_create(static_cast<uint32_t>(core), &tracker));
  nrta_seq_t seq = 0;
  EXPECT_EQ(NRT_SUCCESS, nrta_execute_schedule(model, inputs.get(), outputs.get(), 0, tracker, &seq));
  EXPECT_TRUE(poll_complete(seq));
  const nrta_error_t* errors = nullptr;
  size_t found = 0;
  EXPECT_EQ(NRT_SUCCESS, nrta_error_tracker_get_list(tracker, &errors, &found));
  if (found != 0) {
    char text[1024];
    outcome.run = static_cast<NRT_STATUS>(errors[0].error_code);
    EXPECT_EQ(NRT_SUCCESS, nrt_host_error_text(tracker, errors[0].seq_id, text, sizeof(text)));
    outcome.text = text;
  }
  nrta_error_tracker_destroy(tracker);
  EXPECT_EQ(NRT_SUCCESS, nrt_unload(model));
  return outcome;
}

std::vector<float> pattern(uint32_t of, size_t elements) {
  std::vector<float> data(elements);
  for (size_t i = 0; i < elements; ++i) data[i] = static_cast<float>((i * 7 + of * 13) % 101) - 50;
  return data;
}

class Collectives : public ::testing::TestWithParam<const char*> {};

TEST_P(Collectives, EveryKindGivesEveryRankItsPart) {
  if (!in_fresh_process()) {
    ASSERT_EQ(exits_of(3, {{"NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT", GetParam()}}), std::vector<int>(3, 0));
    return;
  }
  open_runtime();
  const uint32_t me = rank();
  const uint32_t n = ranks();
  // One element, less than a round, and several rounds with a rest.
  for (const int64_t size : {1, 999, 200'003}) {
    const auto elements = static_cast<size_t>(size);
    std::vector<std::vector<float>> all;
    for (uint32_t r = 0; r < n; ++r) all.push_back(pattern(r, elements * n));
    const std::vector<float> mine(all[me].begin(), all[me].begin() + static_cast<std::ptrdiff_t>(elements));

    {
      DeviceTensor in(mine), out(elements * 4);
      const auto neff = collective_neff("all_reduce", "[[0,1,2]]", n, size, size, "f32", "add");
      const Outcome outcome = run_collective(neff, me, n, in, out);
      ASSERT_EQ(NRT_SUCCESS, outcome.run) << outcome.text;
      std::vector<float> expected(elements);
      for (size_t i = 0; i < elements; ++i) expected[i] = all[0][i] + all[1][i] + all[2][i];
      ASSERT_EQ(expected, out.read());
    }
    {
      DeviceTensor in(mine), out(elements * 4);
      const auto neff = collective_neff("all_reduce", "[[0,1,2]]", n, size, size, "f32", "maximum");
      ASSERT_EQ(NRT_SUCCESS, run_collective(neff, me, n, in, out).run);
      std::vector<float> expected(elements);
      for (size_t i = 0; i < elements; ++i) expected[i] = std::max({all[0][i], all[1][i], all[2][i]});
      ASSERT_EQ(expected, out.read());
    }
    {
      DeviceTensor in(mine), out(elements * 4 * n);
      const auto neff = collective_neff("all_gather", "[[2,0,1]]", n, size, size * n);
      ASSERT_EQ(NRT_SUCCESS, run_collective(neff, me, n, in, out).run);
      std::vector<float> expected;
      for (const uint32_t r : {2u, 0u, 1u}) {
        expected.insert(expected.end(), all[r].begin(), all[r].begin() + static_cast<std::ptrdiff_t>(elements));
      }
      ASSERT_EQ(expected, out.read());
    }
    {
      DeviceTensor in(all[me]), out(elements * 4);
      const auto neff = collective_neff("reduce_scatter", "[[0,1,2]]", n, size * n, size, "f32", "add");
      ASSERT_EQ(NRT_SUCCESS, run_collective(neff, me, n, in, out).run);
      std::vector<float> expected(elements);
      for (size_t i = 0; i < elements; ++i) {
        const size_t at = me * elements + i;
        expected[i] = all[0][at] + all[1][at] + all[2][at];
      }
      ASSERT_EQ(expected, out.read());
    }
    {
      DeviceTensor in(all[me]), out(elements * 4 * n);
      const auto neff = collective_neff("all_to_all", "[[0,1,2]]", n, size * n, size * n);
      ASSERT_EQ(NRT_SUCCESS, run_collective(neff, me, n, in, out).run);
      std::vector<float> expected;
      for (uint32_t r = 0; r < n; ++r) {
        const auto begin = all[r].begin() + static_cast<std::ptrdiff_t>(me * elements);
        expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(elements));
      }
      ASSERT_EQ(expected, out.read());
    }
    {
      DeviceTensor in(mine), out(elements * 4);
      const auto neff = collective_neff("collective_broadcast", "[[1,0,2]]", n, size, size);
      ASSERT_EQ(NRT_SUCCESS, run_collective(neff, me, n, in, out).run);
      ASSERT_EQ(std::vector<float>(all[1].begin(), all[1].begin() + static_cast<std::ptrdiff_t>(elements)), out.read());
    }
  }
  ASSERT_EQ(NRT_SUCCESS, nrt_barrier(0, me, n));
  nrt_close();
}

TEST_P(Collectives, NarrowFloatsAccumulateWide) {
  if (!in_fresh_process()) {
    ASSERT_EQ(exits_of(3, {{"NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT", GetParam()}}), std::vector<int>(3, 0));
    return;
  }
  open_runtime();
  // In bf16 256 + 1 is 256 again; in f32 256 + 1 + 1 is 258, which bf16 holds.
  const float values[] = {256, 1, 1};
  const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[rank()]) >> 16);
  constexpr int64_t kElements = 100'001;
  const std::vector<uint16_t> data(kElements, bits);
  DeviceTensor in(kElements * 2), out(kElements * 2);
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_write(in.get(), data.data(), 0, data.size() * 2));
  const auto neff = collective_neff("all_reduce", "[[0,1,2]]", 3, kElements, kElements, "bf16", "add");
  ASSERT_EQ(NRT_SUCCESS, run_collective(neff, rank(), 3, in, out).run);
  std::vector<uint16_t> sums(kElements);
  ASSERT_EQ(NRT_SUCCESS, nrt_tensor_read(out.get(), sums.data(), 0, sums.size() * 2));
  const auto expected = static_cast<uint16_t>(std::bit_cast<uint32_t>(258.0f) >> 16);
  ASSERT_EQ(std::vector<uint16_t>(kElements, expected), sums);
}

TEST_P(Collectives, SubgroupsDoNotMix) {
  if (!in_fresh_process()) {
    ASSERT_EQ(exits_of(4, {{"NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT", GetParam()}}), std::vector<int>(4, 0));
    return;
  }
  open_runtime();
  const uint32_t me = rank();
  const auto value = static_cast<float>(1 << me);
  DeviceTensor in(std::vector<float>{value}), out(4);
  const auto rows = collective_neff("all_reduce", "[[0,1],[2,3]]", 4, 1, 1, "f32", "add");
  const auto columns = collective_neff("all_reduce", "[[0,2],[1,3]]", 4, 1, 1, "f32", "add");
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(NRT_SUCCESS, run_collective(rows, me, 4, in, out).run);
    ASSERT_EQ(me < 2 ? 3.0f : 12.0f, out.read()[0]);
    ASSERT_EQ(NRT_SUCCESS, run_collective(columns, me, 4, in, out).run);
    ASSERT_EQ(me % 2 == 0 ? 5.0f : 10.0f, out.read()[0]);
  }
}

TEST_P(Collectives, ADeadRankIsNamedByTheOthers) {
  if (!in_fresh_process()) {
    ASSERT_EQ(exits_of(3, {{"NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT", GetParam()}}),
              (std::vector<int>{0, -SIGKILL, 0}));
    return;
  }
  open_runtime();
  DeviceTensor in(std::vector<float>(1000, 1.0f)), out(4000);
  const auto neff = collective_neff("all_reduce", "[[0,1,2]]", 3, 1000, 1000, "f32", "add");
  ASSERT_EQ(NRT_SUCCESS, run_collective(neff, rank(), 3, in, out).run);
  if (rank() == 1) raise(SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run_collective(neff, rank(), 3, in, out);
  EXPECT_EQ(NRT_EXEC_HW_ERR_COLLECTIVES, outcome.run);
  EXPECT_NE(std::string::npos, outcome.text.find("rank 1 (process ")) << outcome.text;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  // The group stays broken: no later collective waits again.
  EXPECT_EQ(NRT_EXEC_HW_ERR_COLLECTIVES, run_collective(neff, rank(), 3, in, out).run);
}

TEST_P(Collectives, RanksThatDifferAreToldApart) {
  if (!in_fresh_process()) {
    ASSERT_EQ(exits_of(2, {{"NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT", GetParam()}}), std::vector<int>(2, 0));
    return;
  }
  open_runtime();
  const int64_t size = rank() == 0 ? 8 : 16;
  DeviceTensor in(std::vector<float>(static_cast<size_t>(size))), out(static_cast<size_t>(size) * 4);
  const auto neff = collective_neff("all_reduce", "[[0,1]]", 2, size, size, "f32", "add");
  const Outcome outcome = run_collective(neff, rank(), 2, in, out);
  EXPECT_EQ(NRT_EXEC_HW_ERR_COLLECTIVES, outcome.run);
  EXPECT_NE(std::string::npos, outcome.text.find("all_reduce of 32 bytes")) << outcome.text;
  EXPECT_NE(std::string::npos, outcome.text.find("all_reduce of 64 bytes")) << outcome.text;
}

TEST_P(Collectives, ARankThatDoesNotComeIsNamedAfterTheLimit) {
  if (!in_fresh_process()) {
    ASSERT_EQ(exits_of(2, {{"NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT", GetParam()},
                           {"NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT", "2"}}),
              std::vector<int>(2, 0));
    return;
  }
  open_runtime();
  DeviceTensor in(std::vector<float>{1}), out(4);
  const auto neff = collective_neff("all_reduce", "[[0,1]]", 2, 1, 1, "f32", "add");
  ASSERT_EQ(NRT_SUCCESS, run_collective(neff, rank(), 2, in, out).run);
  if (rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    return;
  }
  const Outcome outcome = run_collective(neff, 0, 2, in, out);
  EXPECT_EQ(NRT_EXEC_HW_ERR_COLLECTIVES, outcome.run);
  EXPECT_NE(std::string::npos, outcome.text.find("rank 1")) << outcome.text;
  EXPECT_NE(std::string::npos, outcome.text.find("NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT")) << outcome.text;
}

INSTANTIATE_TEST_SUITE_P(Transports, Collectives, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CollectivePlaces, TwoCoresOfOneProcessAreTwoRanks) {
  NXL_FRESH_PROCESS({"NEURON_RT_ROOT_COMM_ID", free_address()})
  open_runtime();
  const auto neff = collective_neff("all_reduce", "[[0,1]]", 2, 4, 4, "f32", "add");
  std::vector<std::thread> threads;
  for (uint32_t core = 0; core < 2; ++core) {
    threads.emplace_back([&, core] {
      DeviceTensor in(std::vector<float>(4, static_cast<float>(core + 1)), static_cast<int>(core));
      DeviceTensor out(16, static_cast<int>(core));
      const Outcome outcome = run_collective(neff, core, 2, in, out, static_cast<int>(core));
      EXPECT_EQ(NRT_SUCCESS, outcome.run) << outcome.text;
      EXPECT_EQ(std::vector<float>(4, 3.0f), out.read());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CollectivePlaces, WrongPlacesAreRefusedAtLoad) {
  NXL_FRESH_PROCESS({"NEURON_RT_ROOT_COMM_ID", ""})
  open_runtime();
  const auto neff = collective_neff("all_reduce", "[[0,1]]", 2, 1, 1, "f32", "add");
  nrt_model_t* model = nullptr;
  const auto refused = [&](const std::function<NRT_STATUS()>& call) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(NRT_INVALID, call());
    return ::testing::internal::GetCapturedStderr();
  };
  const auto load_as = [&](uint32_t place, uint32_t count) {
    return refused([&] { return nrt_load_collectives(neff.data(), neff.size(), 0, -1, place, count, &model); });
  };
  EXPECT_NE(std::string::npos, load_as(0, 2).find("NEURON_RT_ROOT_COMM_ID"));
  EXPECT_NE(std::string::npos, load_as(0, 3).find("compiled for 2 ranks"));
  const std::string plain = refused([&] { return nrt_load(neff.data(), neff.size(), 0, -1, &model); });
  EXPECT_NE(std::string::npos, plain.find("nrt_load_collectives")) << plain;
  const auto twice = collective_neff("all_reduce", "[[0,0]]", 2, 1, 1, "f32", "add");
  EXPECT_EQ(NRT_INVALID, nrt_load_collectives(twice.data(), twice.size(), 0, -1, 0, 2, &model));
}

TEST(CollectivePlaces, OneRankNeedsNobody) {
  NXL_FRESH_PROCESS({"NEURON_RT_ROOT_COMM_ID", ""})
  open_runtime();
  const auto neff = collective_neff("all_reduce", "[[0]]", 1, 2, 2, "f32", "add");
  DeviceTensor in(std::vector<float>{3, 4}), out(8);
  ASSERT_EQ(NRT_SUCCESS, run_collective(neff, 0, 1, in, out).run);
  EXPECT_EQ((std::vector<float>{3, 4}), out.read());
  EXPECT_EQ(NRT_SUCCESS, nrt_barrier(0, 0, 1));
}

TEST(CollectivePlaces, TheSecondProcessOfARankIsRefused) {
  if (!in_fresh_process()) {
    ASSERT_EQ(exits_of(3, {}), std::vector<int>(3, 0));
    return;
  }
  open_runtime();
  // Processes 0 and 1 are ranks 0 and 1 of three; process 2 says it is rank 1 as well, so one of the two is refused,
  // and the world never becomes whole.
  const uint32_t place = std::min(rank(), 1u);
  ::testing::internal::CaptureStderr();
  if (rank() == 0) {
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      nrt_close();
    }).detach();
  }
  EXPECT_NE(NRT_SUCCESS, nrt_build_global_comm(0, place, 3));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(log.find("is there already") != log.npos || log.find("ended before") != log.npos ||
              log.find("closing") != log.npos)
      << log;
}

}  // namespace
}  // namespace nxl::host::testing
