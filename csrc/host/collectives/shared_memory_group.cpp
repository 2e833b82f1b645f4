// SPDX-License-Identifier: Apache-2.0
// Groups whose members share memory: each writes what it sends into its own part, the others read it there.
//
// Note "Two buffers". A round's bytes are in one of two buffers, in turn, so a member may fill the next one while the
// others still read the last; it may fill buffer k again when all have read what round k - 2 had there.
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>

#include "core/error.h"
#include "host/collectives/group.h"
#include "host/collectives/world.h"
#include "nrt_abi.h"

namespace nxl::host {
namespace {

using Clock = std::chrono::steady_clock;
using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free);

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kSlice = std::chrono::milliseconds(20);  // how often a sleeper looks for lost members
constexpr int kSlicesPerLook = 10;
constexpr size_t kReasonBytes = 1008;

struct Counter {
  alignas(64) Word value{0};
  Word sleepers{0};
};

struct Part {
  Counter produced;  // the newest round whose bytes are there
  Counter consumed;  // the newest round whose bytes this member has read at the others
  alignas(64) Signature signatures[2];
};

struct Header {
  Counter joined;
  alignas(64) Word broken{0};  // 1: being written, 2: `reason` is there
  char reason[kReasonBytes];
};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void sleep_on(Word& word, uint32_t seen) {
  const timespec slice{0, std::chrono::nanoseconds(kSlice).count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &slice, nullptr, 0);
}

void wake_all(Word& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void publish(Counter& counter, uint32_t value) {
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(counter.value);
}

// Counters wrap; they are never further apart than a few rounds.
bool reached(uint32_t value, uint32_t round) { return static_cast<int32_t>(value - round) >= 0; }

class SharedMemoryGroup final : public Group {
 public:
  SharedMemoryGroup(World& world, std::vector<uint32_t> members, size_t me, const std::string& name)
      : Group(world, std::move(members), me), name_(name) {
    map();
    try {
      join();
    } catch (const std::exception& error) {
      leave(error.what());
      unmap();
      throw;
    }
    shm_unlink(name_.c_str());
  }
  ~SharedMemoryGroup() override { unmap(); }

 private:
  size_t head_bytes() const { return (sizeof(Header) + size() * sizeof(Part) + 4095) / 4096 * 4096; }
  size_t total_bytes() const { return head_bytes() + size() * 2 * round_bytes(); }
  Header& header() { return *std::launder(reinterpret_cast<Header*>(base_)); }
  Part& part(size_t member) {
    return *std::launder(reinterpret_cast<Part*>(base_ + sizeof(Header) + member * sizeof(Part)));
  }
  std::byte* buffer(size_t member, uint32_t round) {
    return base_ + head_bytes() + (member * 2 + (round & 1)) * round_bytes();
  }

  [[noreturn]] void refuse_memory(const char* what, int error) {
    throw_error(ErrorKind::kExecution,
                nxl::detail::concat("shared memory of ", total_bytes(), " bytes for collectives of ", size(),
                                    " ranks: ", what, ": ", std::strerror(error),
                                    " (see /dev/shm, or set NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT=tcp)"),
                NRT_RESOURCE);
  }

  // Zeroed memory is a header and parts in their first state, so whoever comes first makes them.
  void map() {
    const int fd = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) refuse_memory("shm_open", errno);
    const auto mine = static_cast<off_t>(buffer(me_, 0) - base_);
    int error = ftruncate(fd, static_cast<off_t>(total_bytes())) == 0 ? 0 : errno;
    // What is written later must be there: a full file system is an error here and a signal there.
    if (error == 0) error = posix_fallocate(fd, 0, static_cast<off_t>(head_bytes()));
    if (error == 0) error = posix_fallocate(fd, mine, 2 * round_bytes());
    void* address = MAP_FAILED;
    if (error == 0) {
      address = mmap(nullptr, total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (address == MAP_FAILED) error = errno;
    }
    ::close(fd);
    if (error != 0) {
      shm_unlink(name_.c_str());
      refuse_memory("allocating it", error);
    }
    base_ = static_cast<std::byte*>(address);
  }

  void unmap() noexcept {
    if (base_ != nullptr) munmap(base_, total_bytes());
    base_ = nullptr;
  }

  void join() {
    Counter& joined = header().joined;
    joined.value.fetch_add(1);
    wake_all(joined.value);
    const auto deadline = Clock::now() + world_.options().limit;
    // Nobody can tell which member the count lacks; the ones that are lost are named, the others together.
    for (int slice = 0; joined.value.load() != size(); ++slice) {
      const uint32_t seen = joined.value.load();
      if (seen == size()) break;
      for (size_t i = 0; i < size(); ++i) check_member(i, kJoining, slice % kSlicesPerLook == 0);
      if (Clock::now() >= deadline) {
        throw_error(ErrorKind::kExecution,
                    nxl::detail::concat("rank ", world_.rank(), ": ", seen, " of ", size(), " ranks of the group ",
                                        member_text(), " came to its first collective within ", limit_text()),
                    NRT_EXEC_HW_ERR_COLLECTIVES);
      }
      joined.sleepers.fetch_add(1);
      sleep_on(joined.value, seen);
      joined.sleepers.fetch_sub(1);
    }
  }

  std::string member_text() const {
    std::string text;
    for (const uint32_t member : members_) text += (text.empty() ? "" : ",") + std::to_string(member);
    return text;
  }
  std::string limit_text() const {
    return std::to_string(world_.options().limit.count() / 1000) + " s (NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT)";
  }

  void check_member(size_t member, const Signature& signature, bool look) {
    if (member == me_) return;
    if (const auto why = world_.lost(members_[member], look)) fail_waiting(member, signature, *why);
    if (header().broken.load(std::memory_order_acquire) == 2) {
      throw_error(ErrorKind::kExecution,
                  nxl::detail::concat("rank ", world_.rank(), ": another rank of the group gave up: ",
                                      std::string(header().reason, strnlen(header().reason, kReasonBytes))),
                  NRT_EXEC_HW_ERR_COLLECTIVES);
    }
  }

  void await(Counter& counter, uint32_t round, size_t member, const Signature& signature) {
    if (reached(counter.value.load(std::memory_order_acquire), round)) return;
    if (world_.may_spin()) {
      const auto until = Clock::now() + kSpin;
      do {
        for (int i = 0; i < 64; ++i) {
          if (reached(counter.value.load(std::memory_order_acquire), round)) return;
          relax();
        }
      } while (Clock::now() < until);
    }
    const auto deadline = Clock::now() + world_.options().limit;
    for (int slice = 1;; ++slice) {
      counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = counter.value.load(std::memory_order_seq_cst);
      if (!reached(seen, round)) sleep_on(counter.value, seen);
      counter.sleepers.fetch_sub(1, std::memory_order_relaxed);
      if (reached(counter.value.load(std::memory_order_acquire), round)) return;
      check_member(member, signature, slice % kSlicesPerLook == 0);
      if (Clock::now() >= deadline) fail_waiting(member, signature, "it did not come within " + limit_text());
    }
  }

  void exchange(const Signature& signature, const Outgoing& outgoing, const Incoming& incoming) override {
    const uint32_t round = ++round_;
    for (size_t i = 0; i < size(); ++i) {
      if (i != me_) await(part(i).consumed, round - 2, i, signature);
    }
    Part& mine = part(me_);
    std::byte* target = buffer(me_, round);
    if (outgoing.sent_by(me_)) {
      for (size_t i = 0; i < (outgoing.split ? size() : 1); ++i) {
        if (outgoing.split && i == me_) continue;
        std::memcpy(target + i * outgoing.piece_bytes, outgoing.piece(i), outgoing.piece_bytes);
      }
    }
    mine.signatures[round & 1] = signature;
    publish(mine.produced, round);

    std::vector<const std::byte*>& from = sources_;
    from.assign(size(), nullptr);
    for (size_t i = 0; i < size(); ++i) {
      if (i == me_) {
        from[i] = outgoing.piece(me_);
        continue;
      }
      await(part(i).produced, round, i, signature);
      const Signature& theirs = part(i).signatures[round & 1];
      if (theirs != signature) fail_disagreeing(i, theirs, signature);
      from[i] = buffer(i, round) + (outgoing.split ? me_ * outgoing.piece_bytes : 0);
    }
    if (incoming) incoming(from.data());
    publish(mine.consumed, round);
  }

  void leave(const std::string& reason) noexcept override {
    if (base_ == nullptr) return;
    shm_unlink(name_.c_str());
    uint32_t whole = 0;
    if (header().broken.compare_exchange_strong(whole, 1)) {
      std::strncpy(header().reason, reason.c_str(), kReasonBytes - 1);
      header().broken.store(2, std::memory_order_release);
    }
    wake_all(header().joined.value);
    for (size_t i = 0; i < size(); ++i) {
      wake_all(part(i).produced.value);
      wake_all(part(i).consumed.value);
    }
  }

  const std::string name_;
  std::byte* base_ = nullptr;
  uint32_t round_ = 1;  // so that round - 2 is a round that everybody has reached
  std::vector<const std::byte*> sources_;
};

}  // namespace

std::unique_ptr<Group> join_shared_memory(World& world, std::vector<uint32_t> members, size_t me, uint64_t name) {
  char text[64];
  uint64_t token = 0;
  std::memcpy(&token, world.token().data(), sizeof(token));
  std::snprintf(text, sizeof(text), "/nxl-collectives-%016llx-%016llx", static_cast<unsigned long long>(token),
                static_cast<unsigned long long>(name));
  return std::make_unique<SharedMemoryGroup>(world, std::move(members), me, text);
}

}  // namespace nxl::host
