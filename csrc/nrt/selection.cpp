// SPDX-License-Identifier: Apache-2.0
// The choice between libnrt.so.1 and libnrt_host.so.
#include "nrt/selection.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/dtype.h"
#include "core/shared_library.h"

namespace nxl::nrt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSoname = "libnrt.so.1";
constexpr const char* kDocumentedLibrary = "/opt/aws/neuron/lib/libnrt.so.1";
constexpr unsigned kAmazonVendor = 0x1d0f;

// 0x7064..0x7067 (inf1), 0x7164 (trn1), 0x7264 (inf2), 0x7364 (trn2), 0x7564 (trn3): the ids of the aws-neuron driver.
bool is_neuron_device_id(unsigned id) { return (id & 0xF0FC) == 0x7064; }

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code ignored;  // a folder that cannot be read shows no chip
  std::vector<fs::path> out;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
    out.push_back(it->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

unsigned read_hex(const fs::path& file) {
  std::ifstream in(file);
  unsigned value = 0;
  in >> std::hex >> value;
  return in ? value : 0;
}

std::string find_device_node(const std::string& root) {
  for (const fs::path& entry : entries_of(root + "/dev")) {
    if (entry.filename().string().starts_with("neuron")) return "/dev/" + entry.filename().string();
  }
  return {};
}

std::string find_pci_device(const std::string& root) {
  for (const fs::path& entry : entries_of(root + "/sys/bus/pci/devices")) {
    if (read_hex(entry / "vendor") == kAmazonVendor && is_neuron_device_id(read_hex(entry / "device"))) {
      return entry.filename().string();
    }
  }
  return {};
}

// Where the loader would look for the soname, as far as that is known without asking it to load anything.
std::string find_nrt_library(const std::string& root) {
  std::vector<std::string> files = {kDocumentedLibrary};
  for (const char* folder :
       {"/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}) {
    files.push_back(std::string(folder) + "/" + kSoname);
  }
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    std::string_view rest = path;
    while (!rest.empty()) {
      const std::string_view folder = rest.substr(0, rest.find(':'));
      rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
      if (!folder.empty()) files.push_back(std::string(folder) + "/" + kSoname);
    }
  }
  for (const std::string& file : files) {
    std::error_code ignored;
    if (fs::exists(root + file, ignored)) return file;
  }
  return {};
}

}  // namespace

Machine Machine::probe(const std::string& root) {
  Machine machine;
  machine.device_node = find_device_node(root);
  machine.nrt_library = find_nrt_library(root);
  machine.pci_device = find_pci_device(root);
  machine.host_library = SharedLibrary::directory_of(reinterpret_cast<const void*>(&dtype_name)) + "/libnrt_host.so";
  return machine;
}

Choice select(const std::string& wanted, const std::string& library, const Machine& machine) {
  Choice choice;
  if (wanted == "host") {
    choice.reason = "NEURON_LIBTORCH_RUNTIME=host asks for the host runtime";
  } else if (wanted == "nrt") {
    choice.host = false;
    choice.reason = "NEURON_LIBTORCH_RUNTIME=nrt asks for the Neuron runtime";
  } else if (wanted.empty() || wanted == "auto") {
    choice.host = machine.device_node.empty();
    if (!choice.host) {
      choice.reason = "the device node " + machine.device_node + " exists, so the Neuron runtime is used";
    } else if (!machine.nrt_library.empty() || !machine.pci_device.empty()) {
      choice.chip_suspected = true;
      const std::string sign = machine.pci_device.empty() ? "the library " + machine.nrt_library
                                                          : "the Neuron PCI device " + machine.pci_device;
      choice.reason = "there is no device node /dev/neuron*, so the host runtime is used although " + sign +
                      " is present; load the aws-neuron driver (or pass /dev/neuron0 into the container), or set "
                      "NEURON_LIBTORCH_RUNTIME=nrt to insist on the chip";
    } else {
      choice.reason = "there is no device node /dev/neuron*, so the host runtime is used";
    }
  } else {
    throw_error(ErrorKind::kInvalid,
                "NEURON_LIBTORCH_RUNTIME=" + wanted + " is not one of: auto (the default), nrt, host");
  }
  choice.dlopen_name = choice.host ? machine.host_library : kSoname;
  if (!library.empty()) {
    choice.dlopen_name = library;
    choice.reason += "; its library is given by NEURON_LIBTORCH_NRT_LIBRARY";
  }
  return choice;
}

}  // namespace nxl::nrt
