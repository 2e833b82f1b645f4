// SPDX-License-Identifier: Apache-2.0
// Status: the outcome of a data-path call, a code of the NRT enumeration and a message.
#pragma once

#include <string>
#include <utility>

namespace nxl {

// `code` is an NRT_STATUS value (0 is success); core does not include the NRT header, so it is a plain int here.
struct Status {
  int code = 0;
  std::string message;

  static Status ok() { return {}; }
  bool is_ok() const { return code == 0; }
};

}  // namespace nxl
