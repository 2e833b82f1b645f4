// SPDX-License-Identifier: Apache-2.0
// Descriptors that may leave the process: of a memfd that holds the registered memory and nothing else, read-only.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "core/checked.h"
#include "core/log.h"
#include "kv/provider.h"
#include "nrt/runtime.h"

namespace nxl::kv {
namespace {

// True when [address, address + bytes) of this process is a shared mapping of `file` from `offset` on.
bool is_mapped_from(const struct stat& file, uint64_t offset, uint64_t address, uint64_t bytes) {
  std::ifstream maps("/proc/self/maps");
  uint64_t next = address;
  for (std::string line; next < address + bytes && std::getline(maps, line);) {
    uint64_t begin, end, file_offset, inode;
    unsigned device_major, device_minor;
    char permissions[5];
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &begin, &end, permissions,
                    &file_offset, &device_major, &device_minor, &inode) != 7) {
      return false;
    }
    if (end <= next) continue;
    const bool same = begin <= next && permissions[3] == 's' && inode == file.st_ino &&
                      makedev(device_major, device_minor) == file.st_dev &&
                      file_offset + (next - begin) == offset + (next - address);
    if (!same) return false;
    next = end;
  }
  return next >= address + bytes;
}

// The runtime's descriptor of device memory, and where the memory starts in the file.
UniqueFd device_descriptor(const RegionDescription& description, uint64_t* offset) {
  const auto runtime = nrt::Runtime::get_if_initialized();
  const nrt::OpenScope open(runtime.get());
  if (!open || !runtime->api().nrt_get_dmabuf_fd) return {};
  int fd = -1;
  const auto address = reinterpret_cast<uint64_t>(description.address);
  if (runtime->api().nrt_get_dmabuf_fd(address, description.bytes, &fd) != NRT_SUCCESS) return {};
  UniqueFd owned(fd);
  const off_t position = lseek(fd, 0, SEEK_CUR);
  if (position < 0) return {};
  *offset = static_cast<uint64_t>(position);
  return owned;
}

}  // namespace

UniqueFd export_memory(const RegionDescription& description, uint64_t* offset) {
  const auto refuse = [&](const auto&... reason) {
    NXL_LOG(kDebug, "kv region '", description.name, "' is not exported: ", reason...);
    return UniqueFd();
  };
  *offset = description.fd_offset;
  UniqueFd from_runtime;
  int fd = description.fd;
  if (fd < 0) {
    if (description.core < 0) return {};
    from_runtime = device_descriptor(description, offset);
    if (!from_runtime) return refuse("the runtime gives no descriptor of it");
    fd = from_runtime.get();
  }
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  struct stat file {};
  const auto end = checked_add(*offset, description.bytes);
  if (!end || fstat(fd, &file) != 0) return refuse("fstat: ", std::strerror(errno));
  const auto file_bytes = static_cast<uint64_t>(file.st_size);
  if (description.bytes == 0 || *end > file_bytes) return refuse("its file has ", file_bytes, " bytes only");
  if (*offset >= page || file_bytes - *end >= page) return refuse("its file holds more than this memory");
  if (!is_mapped_from(file, *offset, reinterpret_cast<uint64_t>(description.address), description.bytes)) {
    return refuse("its file is not what is mapped at its address");
  }
  // No cut under a reader, and no write by one: the mappings that exist stay writable, new ones cannot be. Without the
  // last seal a peer could open its read-only descriptor again for writing.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
  fcntl(fd, F_ADD_SEALS, kSeals);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return refuse("its file is no memfd that can be sealed");
  UniqueFd exported(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));
  if (!exported) return refuse("opening it read-only: ", std::strerror(errno));
  return exported;
}

}  // namespace nxl::kv
