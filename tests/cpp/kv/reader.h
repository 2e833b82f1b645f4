// SPDX-License-Identifier: Apache-2.0
// The decode side of the tests between two processes: an agent in this one, with memory of its own, whose channels can
// be made slow or faulty.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/crc32c.h"
#include "core/error.h"
#include "kv/agent_core.h"
#include "kv/providers/fault_channel.h"
#include "kv/server_process.h"

namespace nxl::kv::test {

using std::chrono::milliseconds;

inline constexpr Milliseconds kLong{20000};  // far beyond what anything here takes
inline constexpr size_t kBytes = 1 << 20;

inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

inline std::string private_path(const std::string& name) {
  static int count = 0;
  return "/tmp/nxl-kv-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + name;
}

struct Options {
  std::vector<std::string> providers = {};
  std::string key_file = {};
  FaultPlan faults = {};
  FrameFilter filter = {};
  std::function<void(AgentConfig&)> more = {};
};

// A decode-side agent with memory of its own; its channels can be made slow or faulty.
class Reader {
 public:
  explicit Reader(const Options& options = {}) : memory(kBytes) {
    AgentConfig config;
    config.name = "decode";
    config.providers = options.providers;
    config.key_file = options.key_file;
    config.keep_alive = milliseconds(200);
    config.suspect_after = milliseconds(600);
    config.down_after = milliseconds(60000);
    if (options.more) options.more(config);
    AgentParts parts;
    parts.frame_filter = options.filter;
    parts.resend_after = milliseconds(100);
    auto plan = std::make_shared<const FaultPlan>(options.faults);
    parts.make_provider = [plan](const std::string& name, ProviderHost& host) {
      return make_fault_provider(make_provider(name, host), host, plan);
    };
    agent = make_agent(config, parts);
    region = agent->register_region(memory.describe("local"));
  }

  // `count` pieces of `bytes` each, backwards at the source, so that nothing is adjacent.
  std::vector<Run> scattered(uint32_t count, uint64_t bytes) const {
    std::vector<Run> runs;
    for (uint32_t i = 0; i < count; ++i)
      runs.push_back({0, region, (count - 1 - i) * bytes, i * bytes, bytes, 0, 0, 1});
    return runs;
  }
  bool holds(uint32_t count, uint64_t bytes, uint64_t seed) const {
    for (uint32_t i = 0; i < count; ++i) {
      for (uint64_t at = 0; at < bytes; ++at) {
        if (memory.data[i * bytes + at] != pattern(seed, (count - 1 - i) * bytes + at)) return false;
      }
    }
    return true;
  }
  TransferStatus read(PeerId peer, std::vector<Run> runs, Milliseconds deadline = kLong) {
    const TransferId id = agent->prepare_read(peer, std::move(runs));
    const Status posted = agent->post(id, deadline, "");
    EXPECT_TRUE(posted.is_ok()) << posted.message;
    const TransferStatus status = agent->wait(id, kLong);
    EXPECT_TRUE(eventually([&] { return agent->release(id).is_ok(); }));
    return status;
  }
  uint32_t checksum() const { return crc32c(memory.span()); }

  SharedMemory memory;
  std::unique_ptr<Agent> agent;
  uint32_t region = 0;
};

inline FaultPlan slow(milliseconds per_run) {
  FaultPlan plan;
  plan.run_delay = per_run;
  return plan;
}

inline LeaseTicket ticket_from(const std::string& text) {
  std::istringstream in(text);
  LeaseTicket t;
  in >> t.id >> t.key[0] >> t.key[1] >> t.word >> t.generation;
  EXPECT_TRUE(in) << text;
  return t;
}

}  // namespace nxl::kv::test
