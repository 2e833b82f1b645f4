// SPDX-License-Identifier: Apache-2.0
// Mapping of foreign memfds with the checks that keep a hostile owner from harming us, and copies out of them.
#include "kv/providers/shm_provider.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "core/checked.h"
#include "core/error.h"
#include "core/log.h"
#include "kv/providers/run_copy.h"
#include "nrt_abi.h"

namespace nxl::kv {
namespace {

using Mappings = std::map<uint32_t, std::shared_ptr<const SharedMapping>>;

struct Sources final : MappedSource {
  explicit Sources(std::shared_ptr<const Mappings> all) : mappings(std::move(all)) {}
  std::span<const std::byte> source(uint32_t index) const override {
    const auto found = mappings->find(index);
    return found == mappings->end() ? std::span<const std::byte>{} : found->second->bytes();
  }
  std::shared_ptr<const Mappings> mappings;  // kept mapped while a read uses them
};

class ShmChannel final : public Channel {
 public:
  ShmChannel(ProviderHost& host, std::shared_ptr<const SharedMapping> leases, std::string peer)
      : host_(host), leases_(std::move(leases)), peer_(std::move(peer)), mappings_(std::make_shared<Mappings>()) {}

  const char* provider() const override { return "shm"; }
  Capabilities capabilities() const override { return {.one_sided = true, .can_cancel = true}; }

  void set_peer_regions(std::shared_ptr<const RemoteRegionMap> regions) override {
    const std::shared_ptr<const Mappings> before = mappings();
    auto after = std::make_shared<Mappings>();
    for (const auto& [index, region] : *regions) {
      if (!region->fd || !*region->fd) continue;
      if (const auto kept = before->find(index); kept != before->end()) {  // an index is never used twice
        after->emplace(index, kept->second);
        continue;
      }
      std::string why;
      if (auto mapping = SharedMapping::map(*region, &why)) {
        after->emplace(index, std::move(mapping));
      } else {
        NXL_LOG(kWarning, "kv peer '", peer_, "': region ", index, " is not reached by shm: ", why);
      }
    }
    std::lock_guard lock(mutex_);
    mappings_ = std::move(after);
  }

  bool reaches(const RemoteRegion& region) const override { return mappings()->contains(region.index); }

  CopyResult read(std::span<const Run> runs, Progress& progress, Deadline deadline) override {
    if (down_.load(std::memory_order_acquire)) return session_over();
    const std::shared_ptr<const RegionMap> targets = host_.regions();
    return copy_mapped(provider(), runs, Sources(mappings()), *targets, capabilities().chunk_bytes, progress, deadline);
  }

  Status read_word(uint64_t index, uint64_t* value, Deadline) override {
    if (down_.load(std::memory_order_acquire)) return session_over().status;
    const std::span<const std::byte> words = leases_->bytes();
    if (index >= words.size() / sizeof(uint64_t)) {
      return {NRT_INVALID, detail::concat("shm: lease word ", index, " is outside the peer's table of ",
                                          words.size() / sizeof(uint64_t), " words")};
    }
    // The copies before this load are plain loads: none of them may be moved behind it.
    std::atomic_thread_fence(std::memory_order_acquire);
    *value = __atomic_load_n(reinterpret_cast<const uint64_t*>(words.data()) + index, __ATOMIC_ACQUIRE);
    return {};
  }

  void shut_down() override { down_.store(true, std::memory_order_release); }

 private:
  static CopyResult session_over() {
    return {{NRT_CLOSED, "shm: the session with the peer is over"}, Cause::kPeerLost};
  }

  std::shared_ptr<const Mappings> mappings() const {
    std::lock_guard lock(mutex_);
    return mappings_;
  }

  ProviderHost& host_;
  const std::shared_ptr<const SharedMapping> leases_;
  const std::string peer_;
  std::atomic<bool> down_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const Mappings> mappings_;
};

class ShmProvider final : public Provider {
 public:
  explicit ShmProvider(ProviderHost& host) : host_(host) {}
  const char* name() const override { return "shm"; }
  std::string advertise() override { return {}; }

  std::unique_ptr<Channel> open(const ChannelSetup& setup, std::string* why) override {
    if (!setup.unix_socket) {
      *why = "shm needs a peer on this host, connected over a Unix socket";
      return nullptr;
    }
    if (!setup.lease_table) {
      *why = "shm needs the peer's lease table, and none was sent";
      return nullptr;
    }
    auto leases = SharedMapping::map(*setup.lease_table, why);
    if (!leases) return nullptr;
    if (reinterpret_cast<uintptr_t>(leases->bytes().data()) % sizeof(uint64_t) != 0) {
      *why = "the peer's lease table is not aligned to 8 bytes";
      return nullptr;
    }
    auto channel = std::make_unique<ShmChannel>(host_, std::move(leases), setup.peer);
    if (setup.regions) channel->set_peer_regions(setup.regions);
    return channel;
  }

 private:
  ProviderHost& host_;
};

}  // namespace

std::shared_ptr<const SharedMapping> SharedMapping::map(const RemoteRegion& region, std::string* why) {
  const auto refuse = [&](const auto&... parts) {
    *why = detail::concat(parts...);
    return nullptr;
  };
  if (!region.fd || !*region.fd) return refuse("no descriptor came with it");
  const int fd = region.fd->get();
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return refuse("the descriptor is no memfd (F_GET_SEALS: ", std::strerror(errno), ")");
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if ((seals & kNeeded) != kNeeded) {
    return refuse("its memfd has the seals ", seals, ", needed are F_SEAL_SHRINK and F_SEAL_GROW (", kNeeded, ")");
  }
  struct statfs filesystem {};
  if (fstatfs(fd, &filesystem) != 0) return refuse("fstatfs: ", std::strerror(errno));
  if (filesystem.f_type != TMPFS_MAGIC) {
    return refuse("its memfd is of file system ", filesystem.f_type, ", not of shared memory in ordinary pages");
  }
  struct stat file {};
  if (fstat(fd, &file) != 0) return refuse("fstat: ", std::strerror(errno));
  if (region.bytes == 0 || !range_within(region.fd_offset, region.bytes, static_cast<uint64_t>(file.st_size))) {
    return refuse("it should be ", region.bytes, " bytes at ", region.fd_offset, ", its memfd has ", file.st_size);
  }
  const uint64_t skipped = region.fd_offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  void* base =
      mmap(nullptr, skipped + region.bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(region.fd_offset - skipped));
  if (base == MAP_FAILED) return refuse("mmap of ", region.bytes, " bytes: ", std::strerror(errno));
  madvise(base, skipped + region.bytes, MADV_DONTDUMP);  // the peer's prompts do not belong into our core files
  return std::shared_ptr<const SharedMapping>(new SharedMapping(static_cast<std::byte*>(base), skipped, region.bytes));
}

SharedMapping::~SharedMapping() { munmap(const_cast<std::byte*>(base_), skipped_ + bytes_); }

std::unique_ptr<Provider> make_shm_provider(ProviderHost& host) { return std::make_unique<ShmProvider>(host); }

}  // namespace nxl::kv
