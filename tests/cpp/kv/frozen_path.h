// SPDX-License-Identifier: Apache-2.0
// A network path between two agents on this host that can stop carrying anything: both ends keep open connections and
// hear nothing more, no end and no reset, as when a cable is cut or a host loses power.
#pragma once

#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "core/unique_handle.h"

namespace nxl::kv::test {

// Listens on 127.0.0.2 at each of `ports` and forwards to the same port on 127.0.0.1.
class FrozenPath {
 public:
  explicit FrozenPath(const std::vector<uint16_t>& ports);
  ~FrozenPath();
  FrozenPath(const FrozenPath&) = delete;
  FrozenPath& operator=(const FrozenPath&) = delete;

  void freeze();  // nothing is carried, nothing accepted; bytes on their way stay there
  void thaw();    // connections that were frozen end; new ones are carried

 private:
  struct Connection {
    UniqueFd near, far;
  };
  void run();
  static bool carry(int from, int to);

  std::vector<std::pair<uint16_t, UniqueFd>> listeners_;
  UniqueFd wake_;
  std::mutex mutex_;
  bool frozen_ = false, stopping_ = false;
  std::vector<Connection> connections_;
  std::thread thread_;
};

}  // namespace nxl::kv::test
