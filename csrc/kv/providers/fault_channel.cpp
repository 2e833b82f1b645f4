// SPDX-License-Identifier: Apache-2.0
// Injected delays, losses and failures. Keeps the one promise that a provider may never break: after read() returned,
// nothing lands.
#include "kv/providers/fault_channel.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "kv/providers/run_copy.h"
#include "kv/providers/run_cursor.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

class FaultChannel final : public Channel {
 public:
  FaultChannel(std::unique_ptr<Channel> inner, ProviderHost& host, std::shared_ptr<const FaultPlan> plan)
      : inner_(std::move(inner)), host_(host), plan_(std::move(plan)) {}

  const char* provider() const override { return inner_->provider(); }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  void set_peer_regions(std::shared_ptr<const RemoteRegionMap> regions) override {
    inner_->set_peer_regions(std::move(regions));
  }
  bool reaches(const RemoteRegion& region) const override { return inner_->reaches(region); }

  CopyResult read(std::span<const Run> runs, Progress& progress, Deadline deadline) override {
    const uint64_t call = reads_.fetch_add(1) + 1;
    const FaultPlan& plan = *plan_;
    if (plan.nth_read != 0 && plan.nth_read != call) return inner_->read(runs, progress, deadline);
    if (auto stopped = pause(plan.drop ? Deadline::max() : now() + plan.delay, progress, deadline, 0)) return *stopped;
    const uint64_t bytes_before = progress.bytes_done.load();

    std::vector<Run> sent(runs.begin(), runs.end());
    std::optional<CopyResult> failure;
    if (plan.fail_at_run < sent.size()) {
      sent.resize(plan.fail_at_run);
      failure = CopyResult{{NRT_FAILURE, "injected failure"}, plan.fail_with, plan.fail_at_run};
    }
    if ((plan.wrong_size || plan.lie_about_size) && !failure) {
      const uint64_t last_run = shorten(&sent);
      if (plan.wrong_size) failure = CopyResult{{NRT_FAILURE, "injected wrong size"}, Cause::kIntegrity, last_run};
    }
    CopyResult result = copy(sent, plan, progress, deadline);
    if (!result.status.is_ok()) return result;
    if (plan.corrupt && progress.bytes_done.load() != bytes_before) invert_first_byte(sent);
    return failure.value_or(CopyResult{});
  }

  Status read_word(uint64_t index, uint64_t* value, Deadline deadline) override {
    if (plan_->fail_word != 0 && words_.fetch_add(1) + 1 == plan_->fail_word) {
      return {NRT_FAILURE, "injected failure of a lease word"};
    }
    const Status status = inner_->read_word(index, value, deadline);
    if (plan_->lose_words) *value = 0;
    return status;
  }

  void shut_down() override { inner_->shut_down(); }

 private:
  static Deadline now() { return std::chrono::steady_clock::now(); }

  std::optional<CopyResult> pause(Deadline until, Progress& progress, Deadline deadline, size_t run) {
    constexpr std::chrono::milliseconds kStep(5);  // how late a stop is seen
    while (now() < until) {
      if (auto stopped = interruption(progress, deadline, run)) return stopped;
      std::this_thread::sleep_for(std::min<Deadline::duration>({kStep, until - now(), deadline - now()}));
    }
    return std::nullopt;
  }

  CopyResult copy(std::span<const Run> runs, const FaultPlan& plan, Progress& progress, Deadline deadline) {
    if (plan.run_delay.count() == 0) return inner_->read(runs, progress, deadline);
    for (size_t i = 0; i < runs.size(); ++i) {
      if (auto stopped = pause(now() + plan.run_delay, progress, deadline, i)) return *stopped;
      CopyResult result = inner_->read(runs.subspan(i, 1), progress, deadline);
      if (result.status.is_ok()) continue;
      result.first_failed_run = i;
      return result;
    }
    return {};
  }

  // Takes the last byte away; returns the index of the run that lost it.
  static uint64_t shorten(std::vector<Run>* runs) {
    while (!runs->empty() && runs->back().total_bytes() == 0) runs->pop_back();
    if (runs->empty()) return 0;
    const uint64_t index = runs->size() - 1;
    Run last = runs->back();
    if (last.count > 1) {
      --runs->back().count;
      last.source_offset += (last.count - 1) * last.source_stride;
      last.target_offset += (last.count - 1) * last.target_stride;
      last.count = 1;
      runs->push_back(last);
    }
    --runs->back().bytes;
    return index;
  }

  void invert_first_byte(std::span<const Run> runs) {
    const auto run = std::ranges::find_if(runs, [](const Run& candidate) { return candidate.total_bytes() != 0; });
    if (run == runs.end()) return;
    const auto regions = host_.regions();
    std::byte& byte = region_bytes(*regions, run->target_region)[run->target_offset];
    byte = ~byte;
  }

  const std::unique_ptr<Channel> inner_;
  ProviderHost& host_;
  const std::shared_ptr<const FaultPlan> plan_;
  std::atomic<uint64_t> reads_{0}, words_{0};
};

class FaultProvider final : public Provider {
 public:
  FaultProvider(std::unique_ptr<Provider> inner, ProviderHost& host, std::shared_ptr<const FaultPlan> plan)
      : inner_(std::move(inner)), host_(host), plan_(std::move(plan)) {}
  const char* name() const override { return inner_->name(); }
  std::string advertise() override { return inner_->advertise(); }
  std::unique_ptr<Channel> open(const ChannelSetup& setup, std::string* why) override {
    auto channel = inner_->open(setup, why);
    return channel ? std::make_unique<FaultChannel>(std::move(channel), host_, plan_) : nullptr;
  }

 private:
  const std::unique_ptr<Provider> inner_;
  ProviderHost& host_;
  const std::shared_ptr<const FaultPlan> plan_;
};

}  // namespace

std::unique_ptr<Channel> make_fault_channel(std::unique_ptr<Channel> inner, ProviderHost& host, FaultPlan plan) {
  return std::make_unique<FaultChannel>(std::move(inner), host, std::make_shared<const FaultPlan>(plan));
}

std::unique_ptr<Provider> make_fault_provider(std::unique_ptr<Provider> inner, ProviderHost& host,
                                              std::shared_ptr<const FaultPlan> plan) {
  return std::make_unique<FaultProvider>(std::move(inner), host, std::move(plan));
}

}  // namespace nxl::kv
