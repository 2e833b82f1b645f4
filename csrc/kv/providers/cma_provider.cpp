// SPDX-License-Identifier: Apache-2.0
// Reads of another process's memory, tied to that one process although pids are used again.
#include "kv/providers/cma_provider.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>

#include "core/checked.h"
#include "core/error.h"
#include "kv/auth.h"
#include "kv/providers/io_vectors.h"
#include "kv/providers/run_copy.h"
#include "kv/providers/run_cursor.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;

// What a provider advertises: where its token lies in its memory, and the token. Reading the one and finding the other
// proves that the kernel lets us attach and that the pid, seen from here, is the peer.
struct Advertisement {
  uint64_t address = 0;
  Key token{};
};

ssize_t read_memory(pid_t pid, void* target, uint64_t address, size_t bytes) {
  iovec to{target, bytes};
  iovec from{reinterpret_cast<void*>(address), bytes};
  return process_vm_readv(pid, &to, 1, &from, 1, 0);
}

std::string explain(int error, pid_t pid) {
  switch (error) {
    case EPERM:
      return detail::concat("cma: the kernel does not let this process attach to ", pid,
                            " (another user, a container boundary, or kernel.yama.ptrace_scope); use shm or tcp");
    case ESRCH:
      return detail::concat("cma: process ", pid, " is gone");
    case EFAULT:
      return detail::concat("cma: process ", pid, " has unmapped memory that it registered");
    default:
      return detail::concat("cma: process_vm_readv from process ", pid, ": ", std::strerror(error));
  }
}

CopyResult failure(int error, pid_t pid, size_t run) {
  const bool gone = error == ESRCH;
  return {{gone ? NRT_CLOSED : NRT_FAILURE, explain(error, pid)}, gone ? Cause::kPeerLost : Cause::kProvider, run};
}

// Pieces of both sides, for one or a few calls.
class Batch {
 public:
  bool full() const { return local_.full() || remote_.full() || bytes_ == kChunkBytes; }
  uint64_t bytes() const { return bytes_; }

  void add(std::byte* local, uint64_t remote, size_t bytes) {
    local_.add(local, bytes);
    remote_.add(reinterpret_cast<void*>(remote), bytes);
    bytes_ += bytes;
  }

  // The kernel may stop early at a page that it cannot have; what is left is asked for again and then names the error.
  // 0 when all bytes arrived: the batch is empty again.
  int read(pid_t pid, std::atomic<uint64_t>& bytes_done) {
    while (bytes_ != 0) {
      const ssize_t got = process_vm_readv(pid, local_.data(), local_.count(), remote_.data(), remote_.count(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return got < 0 ? errno : EFAULT;
      local_.consume(static_cast<size_t>(got));
      remote_.consume(static_cast<size_t>(got));
      bytes_ -= static_cast<uint64_t>(got);
      bytes_done.fetch_add(static_cast<uint64_t>(got), std::memory_order_relaxed);
    }
    return 0;
  }

 private:
  IoVectors local_, remote_;
  uint64_t bytes_ = 0;
};

class CmaChannel final : public Channel {
 public:
  CmaChannel(ProviderHost& host, const ChannelSetup& setup, UniqueFd process)
      : host_(host), pid_(setup.pid), process_(std::move(process)), lease_table_(setup.lease_table) {
    regions_ = setup.regions ? setup.regions : std::make_shared<RemoteRegionMap>();
  }

  const char* provider() const override { return "cma"; }
  Capabilities capabilities() const override {
    return {.one_sided = true, .can_cancel = true, .chunk_bytes = kChunkBytes};
  }

  void set_peer_regions(std::shared_ptr<const RemoteRegionMap> regions) override {
    std::lock_guard lock(mutex_);
    regions_ = std::move(regions);
  }

  bool reaches(const RemoteRegion& region) const override { return region.address != 0; }

  CopyResult read(std::span<const Run> runs, Progress& progress, Deadline deadline) override {
    const std::shared_ptr<const RegionMap> targets = host_.regions();
    std::shared_ptr<const RemoteRegionMap> sources;
    {
      std::lock_guard lock(mutex_);
      sources = regions_;
    }
    Batch batch;
    RunCursor cursor(runs);
    size_t checked_runs = 0;
    size_t first_run = cursor.run();
    const RemoteRegion* source = nullptr;
    std::span<std::byte> target;
    while (!cursor.at_end()) {
      const size_t index = cursor.run();
      if (index >= checked_runs) {
        const Run& run = runs[index];
        if (!source || source->index != run.source_region) {
          const auto found = sources->find(run.source_region);
          source = found == sources->end() ? nullptr : found->second.get();
        }
        target = region_bytes(*targets, run.target_region);
        const uint64_t source_bytes = source ? source->bytes : 0;
        if (!run_within(run, source_bytes, target.size())) {
          if (auto failed = flush(batch, first_run, progress, deadline)) return *failed;
          return out_of_bounds(provider(), runs, index, source_bytes, target.size());
        }
        checked_runs = index + 1;
      }
      // One piece at a time: neighbours join into one vector, so a part may need one vector or all of them.
      const Run part = cursor.next(kChunkBytes - batch.bytes(), 1);
      batch.add(target.data() + part.target_offset, source->address + part.source_offset, part.bytes);
      if (!batch.full()) continue;
      if (auto failed = flush(batch, first_run, progress, deadline)) return *failed;
      first_run = cursor.run();
    }
    if (auto failed = flush(batch, first_run, progress, deadline)) return *failed;
    // A pid that was given to another process in the meantime: the bytes may be that one's.
    if (ended()) return session_over(0);
    return {};
  }

  Status read_word(uint64_t index, uint64_t* value, Deadline) override {
    if (!lease_table_ || index >= lease_table_->bytes / sizeof(uint64_t)) {
      return {NRT_INVALID, detail::concat("cma: lease word ", index, " is outside the peer's table")};
    }
    if (down_.load(std::memory_order_acquire)) return session_over(0).status;
    std::atomic_thread_fence(std::memory_order_seq_cst);  // the kernel's load must not pass the copies before it
    const ssize_t got = read_memory(pid_, value, lease_table_->address + index * sizeof(uint64_t), sizeof(uint64_t));
    if (got != sizeof(uint64_t)) return failure(got < 0 ? errno : EFAULT, pid_, 0).status;
    return ended() ? session_over(0).status : Status::ok();
  }

  void shut_down() override { down_.store(true, std::memory_order_release); }

 private:
  std::optional<CopyResult> flush(Batch& batch, size_t first_run, Progress& progress, Deadline deadline) {
    if (down_.load(std::memory_order_acquire)) return session_over(first_run);
    if (batch.bytes() == 0) return std::nullopt;
    if (auto stopped = interruption(progress, deadline, first_run)) return stopped;
    if (const int error = batch.read(pid_, progress.bytes_done)) {
      return ended() ? session_over(first_run) : failure(error, pid_, first_run);
    }
    return std::nullopt;
  }

  bool ended() const {
    pollfd exit{process_.get(), POLLIN, 0};
    return down_.load(std::memory_order_acquire) || poll(&exit, 1, 0) != 0;
  }

  CopyResult session_over(size_t run) const {
    return {
        {NRT_CLOSED, detail::concat("cma: process ", pid_, " ended, or the session with it")}, Cause::kPeerLost, run};
  }

  ProviderHost& host_;
  const pid_t pid_;
  const UniqueFd process_;  // pidfd: readable once the process has ended
  const std::shared_ptr<const RemoteRegion> lease_table_;
  std::atomic<bool> down_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const RemoteRegionMap> regions_;
};

class CmaProvider final : public Provider {
 public:
  explicit CmaProvider(ProviderHost& host) : host_(host), token_(std::make_unique<Key>(random_key())) {}
  const char* name() const override { return "cma"; }

  std::string advertise() override {
    Advertisement advertisement{reinterpret_cast<uint64_t>(token_.get()), *token_};
    return {reinterpret_cast<const char*>(&advertisement), sizeof(advertisement)};
  }

  std::unique_ptr<Channel> open(const ChannelSetup& setup, std::string* why) override {
    const auto refuse = [&](const std::string& reason) {
      *why = reason;
      return nullptr;
    };
    if (!setup.unix_socket || setup.pid <= 0) {
      return refuse("cma needs a peer on this host whose pid is known, connected over a Unix socket");
    }
    // The pidfd names the process that has the pid now; the start times before and after tie the pid to it, and the
    // token ties it to the peer.
    const auto started = process_start_time(setup.pid);
    UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, setup.pid, 0)));
    if (!process) return refuse(detail::concat("pidfd_open of process ", setup.pid, ": ", std::strerror(errno)));
    if (!started || process_start_time(setup.pid) != started) {
      return refuse(detail::concat("process ", setup.pid, " ended while it was looked at"));
    }
    Advertisement advertisement;
    if (setup.advertisement.size() != sizeof(advertisement)) return refuse("the peer's cma advertisement is malformed");
    std::memcpy(&advertisement, setup.advertisement.data(), sizeof(advertisement));
    Key found{};
    const ssize_t got = read_memory(setup.pid, &found, advertisement.address, sizeof(found));
    if (got != sizeof(found)) return refuse(explain(got < 0 ? errno : EFAULT, setup.pid));
    if (found != advertisement.token) {
      return refuse(detail::concat("process ", setup.pid, " is not the peer: another pid namespace?"));
    }
    return std::make_unique<CmaChannel>(host_, setup, std::move(process));
  }

 private:
  ProviderHost& host_;
  const std::unique_ptr<const Key> token_;  // its address is read by peers
};

}  // namespace

std::optional<uint64_t> process_start_time(pid_t pid) {
  const UniqueFd file(open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text;
  const ssize_t bytes = file ? read(file.get(), text.data(), text.size()) : -1;
  if (bytes <= 0) return std::nullopt;
  std::string_view rest(text.data(), static_cast<size_t>(bytes));
  const size_t name_end = rest.rfind(')');  // the second field is a name that may hold blanks and brackets
  if (name_end == rest.npos) return std::nullopt;
  rest.remove_prefix(name_end + 1);
  constexpr int kFieldsBetween = 19;  // from the third to the 22nd
  for (int field = 0; field < kFieldsBetween; ++field) {
    const size_t blank = rest.find(' ', 1);
    if (blank == rest.npos) return std::nullopt;
    rest.remove_prefix(blank);
  }
  rest.remove_prefix(std::min<size_t>(1, rest.size()));
  uint64_t ticks = 0;
  if (std::from_chars(rest.data(), rest.data() + rest.size(), ticks).ec != std::errc{}) return std::nullopt;
  return ticks;
}

std::unique_ptr<Provider> make_cma_provider(ProviderHost& host) { return std::make_unique<CmaProvider>(host); }

}  // namespace nxl::kv
