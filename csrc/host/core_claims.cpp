// SPDX-License-Identifier: Apache-2.0
// Visible cores and their claims.
#include "host/core_claims.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "host/environment.h"
#include "host/refusal.h"

namespace nxl::host {
namespace {

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::vector<int> parse_core_list(const char* text) {
  const auto bad = [&](const std::string& reason) {
    refuse(NRT_INVALID, "NEURON_RT_VISIBLE_CORES=", text, ": ", reason,
           " (expected ids and ranges such as 0-1,3, from 0 to ", kTotalCores - 1, ")");
  };
  std::vector<int> ids;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    if (rest.empty() && part.size() + 1 == std::strlen(text) - static_cast<size_t>(part.data() - text))
      bad("it ends with a comma");
    const size_t dash = part.find('-');
    const auto first = parse_integer(part.substr(0, dash));
    const auto last = dash == part.npos ? first : parse_integer(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *first > *last || *last >= kTotalCores) {
      bad(nxl::detail::concat("'", part, "' is not a core or a range of cores"));
    }
    for (int64_t id = *first; id <= *last; ++id) {
      if (std::find(ids.begin(), ids.end(), id) != ids.end()) bad("core " + std::to_string(id) + " is named twice");
      ids.push_back(static_cast<int>(id));
    }
  }
  return ids;
}

std::string owner_of(const std::string& path) {
  char text[24] = {};
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (::read(fd, text, sizeof(text) - 1) < 0) text[0] = '\0';
    ::close(fd);
  }
  const auto pid = parse_integer(text);
  return pid ? "process " + std::to_string(*pid) : "another process";
}

}  // namespace

std::string claim_folder() {
  const char* chosen = std::getenv("NEURON_LIBTORCH_HOST_CLAIM_DIR");
  const std::string folder =
      chosen && *chosen ? chosen : "/tmp/neuron-host-cores-" + std::to_string(static_cast<unsigned>(geteuid()));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    refuse(NRT_FAILURE, "the folder of core claims ", folder, ": ", std::strerror(errno));
  }
  // Somebody else's folder of that name under /tmp could redirect our files.
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
    refuse(NRT_FAILURE, "the folder of core claims ", folder,
           " is not a directory of this user; remove it or set NEURON_LIBTORCH_HOST_CLAIM_DIR");
  }
  return folder;
}

CoreSelection CoreSelection::from_environment() {
  CoreSelection selection;
  if (const char* list = std::getenv("NEURON_RT_VISIBLE_CORES"); list && *list) {
    selection.ids = parse_core_list(list);
    selection.host_wide = true;
  } else if (const auto count = environment_integer("NEURON_RT_NUM_CORES", 1, kTotalCores)) {
    selection.count = static_cast<int>(*count);
    selection.host_wide = true;
    return selection;
  } else {
    for (int id = 0; id < kDefaultCores; ++id) selection.ids.push_back(id);
  }
  selection.count = static_cast<int>(selection.ids.size());
  return selection;
}

std::unique_ptr<CoreClaims> CoreClaims::take(const CoreSelection& selection) {
  std::unique_ptr<CoreClaims> claims(new CoreClaims);
  claims->host_wide_ = selection.host_wide;
  claims->ids_ = selection.ids;
  if (!selection.host_wide) return claims;
  claims->folder_ = claim_folder();
  if (!selection.ids.empty()) {
    for (const int core : selection.ids) {
      if (!claims->try_claim(core)) {
        refuse(NRT_EXEC_NC_BUSY, "core ", core, " is in use by ", owner_of(claims->path(core)),
               "; set NEURON_RT_VISIBLE_CORES to a free core");
      }
    }
    return claims;
  }
  for (int core = 0; core < kTotalCores && static_cast<int>(claims->ids_.size()) < selection.count; ++core) {
    if (claims->try_claim(core)) claims->ids_.push_back(core);
  }
  if (static_cast<int>(claims->ids_.size()) < selection.count) {
    refuse(NRT_EXEC_NC_BUSY, "NEURON_RT_NUM_CORES=", selection.count,
           " asks for more cores than are free: ", claims->ids_.size(), " of ", kTotalCores);
  }
  return claims;
}

CoreClaims::~CoreClaims() { close_descriptors(); }

void CoreClaims::close_descriptors() noexcept {
  for (int& fd : descriptors_) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
}

std::string CoreClaims::path(int core) const { return folder_ + "/core-" + std::to_string(core); }

bool CoreClaims::try_claim(int core) {
  const int fd = ::open(path(core).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) refuse(NRT_FAILURE, "the claim file ", path(core), ": ", std::strerror(errno));
  struct flock lock = whole_file(F_WRLCK);
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    const int error = errno;
    ::close(fd);
    if (error == EAGAIN || error == EACCES) return false;
    refuse(NRT_FAILURE, "locking the claim file ", path(core), ": ", std::strerror(error));
  }
  descriptors_.push_back(fd);
  const std::string pid = std::to_string(getpid());
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    refuse(NRT_FAILURE, "writing the claim file ", path(core), ": ", std::strerror(errno));
  }
  return true;
}

int CoreClaims::claimed_by_others() const {
  if (!host_wide_) return 0;
  int claimed = 0;
  for (int core = 0; core < kTotalCores; ++core) {
    if (std::find(ids_.begin(), ids_.end(), core) != ids_.end()) continue;
    const int fd = ::open(path(core).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    struct flock lock = whole_file(F_WRLCK);
    if (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) ++claimed;
    ::close(fd);
  }
  return claimed;
}

}  // namespace nxl::host
