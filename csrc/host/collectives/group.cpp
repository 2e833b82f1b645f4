// SPDX-License-Identifier: Apache-2.0
// What groups of every transport have in common: the messages of failure, and staying failed.
#include "host/collectives/group.h"

#include <iterator>

#include "core/error.h"
#include "host/collectives/world.h"
#include "nrt_abi.h"

namespace nxl::host {

std::string describe(const Signature& signature) {
  const char* name =
      signature.op < std::size(kCollectiveNames) ? kCollectiveNames[signature.op] : "the first collective of a group";
  if (signature.bytes == 0) return name;
  return nxl::detail::concat(name, " of ", signature.bytes, " bytes");
}

void Group::round(const Signature& signature, const Outgoing& outgoing, const Incoming& incoming) {
  if (!broken_.empty()) throw_error(ErrorKind::kExecution, broken_, NRT_EXEC_HW_ERR_COLLECTIVES);
  try {
    exchange(signature, outgoing, incoming);
  } catch (const std::exception& error) {
    broken_ = error.what();
    leave(broken_);
    throw;
  }
}

void Group::fail_waiting(size_t member, const Signature& signature, const std::string& why) const {
  throw_error(ErrorKind::kExecution,
              nxl::detail::concat("rank ", world_.rank(), " waits for ", world_.describe(members_[member]), " in ",
                                  describe(signature), ": ", why),
              NRT_EXEC_HW_ERR_COLLECTIVES);
}

void Group::fail_disagreeing(size_t member, const Signature& theirs, const Signature& ours) const {
  throw_error(ErrorKind::kExecution,
              nxl::detail::concat(world_.describe(members_[member]), " runs ", describe(theirs), " where rank ",
                                  world_.rank(), " runs ", describe(ours),
                                  "; every rank of a group runs the same collectives in the same order"),
              NRT_EXEC_HW_ERR_COLLECTIVES);
}

}  // namespace nxl::host
