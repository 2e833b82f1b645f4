// SPDX-License-Identifier: Apache-2.0
// The inputs and outputs of a loaded executable: what the file says, reconciled with what NRT says.
#pragma once

#include <cstddef>
#include <vector>

#include "neff/reader.h"
#include "nrt/model.h"

namespace nxl::loader {

struct Signature {
  std::vector<neff::Variable> inputs;
  std::vector<neff::Variable> outputs;
  std::vector<size_t> aliased_outputs;  // indices into outputs

  // A host NEFF states everything, and NRT must agree on names and sizes: else Error(kInvalid). A chip NEFF may leave
  // dtypes and variables out: NRT's list counts, in the file's order where the file has one.
  static Signature of(const neff::Neff& neff, const nrt::Model& model);
};

}  // namespace nxl::loader
