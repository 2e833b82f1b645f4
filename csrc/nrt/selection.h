// SPDX-License-Identifier: Apache-2.0
// Which NRT library this process takes: the rules, apart from the machine they are applied to.
#pragma once

#include <string>

#include "nrt/runtime.h"

namespace nxl::nrt {

// The signs of a chip on this machine. Probing opens and loads nothing.
struct Machine {
  std::string device_node;   // the first /dev/neuron* entry; empty when there is none
  std::string nrt_library;   // a libnrt.so.1 that was found; empty when there is none
  std::string pci_device;    // the address of a Neuron PCI device; empty when there is none
  std::string host_library;  // where libnrt_host.so is expected: beside libnxl_runtime.so

  // `root` is prefixed to every path that is looked at, so that tests can lay out a machine of their own.
  static NXL_API Machine probe(const std::string& root = "");
};

// The rules of NEURON_LIBTORCH_RUNTIME (`wanted`) and NEURON_LIBTORCH_NRT_LIBRARY (`library`); empty means not set.
// Throws Error(kInvalid) for an unknown word.
NXL_API Choice select(const std::string& wanted, const std::string& library, const Machine& machine);

}  // namespace nxl::nrt
