// SPDX-License-Identifier: Apache-2.0
// The choice of the runtime: every combination of wish and machine, and machines laid out in a folder.
#include "nrt/selection.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace nxl::test {
namespace {

namespace fs = std::filesystem;
using nrt::Choice;
using nrt::Machine;
using nrt::Runtime;

Machine machine(bool node, bool library, bool pci) {
  Machine out;
  if (node) out.device_node = "/dev/neuron0";
  if (library) out.nrt_library = "/opt/aws/neuron/lib/libnrt.so.1";
  if (pci) out.pci_device = "0000:a0:1c.0";
  out.host_library = "/package/lib/libnrt_host.so";
  return out;
}

TEST(Selection, Matrix) {
  for (const char* wanted : {"", "auto", "nrt", "host"}) {
    for (int signs = 0; signs < 8; ++signs) {
      const bool node = (signs & 1) != 0, library = (signs & 2) != 0, pci = (signs & 4) != 0;
      const std::string word = wanted;
      const Choice choice = nrt::select(word, "", machine(node, library, pci));
      const bool automatic = word.empty() || word == "auto";
      const bool host = word == "host" || (automatic && !node);
      SCOPED_TRACE(word + " " + std::to_string(signs));
      EXPECT_EQ(choice.host, host);
      EXPECT_EQ(choice.dlopen_name, host ? "/package/lib/libnrt_host.so" : "libnrt.so.1");
      EXPECT_EQ(choice.chip_suspected, automatic && !node && (library || pci));
      EXPECT_FALSE(choice.reason.empty());
    }
  }
}

TEST(Selection, ASuspectedChipNamesTheMissingNodeAndTheRemedy) {
  const std::string by_library = nrt::select("", "", machine(false, true, false)).reason;
  EXPECT_NE(by_library.find("/dev/neuron"), std::string::npos);
  EXPECT_NE(by_library.find("libnrt.so.1"), std::string::npos);
  EXPECT_NE(by_library.find("NEURON_LIBTORCH_RUNTIME=nrt"), std::string::npos);
  EXPECT_NE(nrt::select("", "", machine(false, false, true)).reason.find("0000:a0:1c.0"), std::string::npos);
}

TEST(Selection, TheLibraryCanBeGiven) {
  EXPECT_EQ(nrt::select("nrt", "/x/libnrt.so", machine(false, false, false)).dlopen_name, "/x/libnrt.so");
  const Choice choice = nrt::select("host", "/x/libhost.so", machine(true, true, true));
  EXPECT_TRUE(choice.host);
  EXPECT_EQ(choice.dlopen_name, "/x/libhost.so");
  EXPECT_NE(choice.reason.find("NEURON_LIBTORCH_NRT_LIBRARY"), std::string::npos);
}

TEST(Selection, AnUnknownWordListsTheChoices) {
  for (const char* word : {"Host", "cpu", "chip", " host"}) {
    try {
      nrt::select(word, "", machine(false, false, false));
      FAIL() << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_EQ(std::string(error.what()),
                std::string("NEURON_LIBTORCH_RUNTIME=") + word + " is not one of: auto (the default), nrt, host");
    }
  }
}

class MachineTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("nxl_machine_" + std::to_string(getpid()));
    fs::create_directories(root_ / "dev");
    unsetenv("LD_LIBRARY_PATH");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  Machine probe() { return Machine::probe(root_.string()); }

  fs::path root_;
};

TEST_F(MachineTest, AnEmptyMachineShowsNoChip) {
  write("dev/null", "");
  write("sys/bus/pci/devices/0000:00:05.0/vendor", "0x1d0f\n");
  write("sys/bus/pci/devices/0000:00:05.0/device", "0xec20\n");  // a network card of the same vendor
  write("sys/bus/pci/devices/0000:00:06.0/vendor", "0x8086\n");
  write("sys/bus/pci/devices/0000:00:06.0/device", "0x7364\n");
  const Machine found = probe();
  EXPECT_EQ(found.device_node, "");
  EXPECT_EQ(found.nrt_library, "");
  EXPECT_EQ(found.pci_device, "");
  EXPECT_TRUE(found.host_library.ends_with("/libnrt_host.so")) << found.host_library;
}

TEST_F(MachineTest, FindsNodeLibraryAndPciDevice) {
  write("dev/neuron1", "");
  write("dev/neuron0", "");
  EXPECT_EQ(probe().device_node, "/dev/neuron0");
  write("opt/aws/neuron/lib/libnrt.so.1", "");
  EXPECT_EQ(probe().nrt_library, "/opt/aws/neuron/lib/libnrt.so.1");
  for (const char* device : {"0x7064", "0x7164", "0x7264", "0x7364", "0x7564"}) {
    write("sys/bus/pci/devices/0000:a0:1c.0/vendor", "0x1d0f\n");
    write("sys/bus/pci/devices/0000:a0:1c.0/device", std::string(device) + "\n");
    EXPECT_EQ(probe().pci_device, "0000:a0:1c.0") << device;
  }
}

TEST_F(MachineTest, LooksAlongTheLibraryPath) {
  write("some/lib/libnrt.so.1", "");
  setenv("LD_LIBRARY_PATH", "/nothing::/some/lib", 1);
  EXPECT_EQ(probe().nrt_library, "/some/lib/libnrt.so.1");
  unsetenv("LD_LIBRARY_PATH");
}

TEST(Choose, ReadsTheEnvironment) {
  setenv("NEURON_LIBTORCH_RUNTIME", "nrt", 1);
  setenv("NEURON_LIBTORCH_NRT_LIBRARY", "/x/libnrt.so.1", 1);
  EXPECT_FALSE(Runtime::choose().host);
  EXPECT_EQ(Runtime::choose().dlopen_name, "/x/libnrt.so.1");
  unsetenv("NEURON_LIBTORCH_NRT_LIBRARY");
  EXPECT_EQ(Runtime::choose().dlopen_name, "libnrt.so.1");
  setenv("NEURON_LIBTORCH_RUNTIME", "host", 1);
  EXPECT_TRUE(fs::exists(fs::path(Runtime::choose().dlopen_name).parent_path() / "libnxl_runtime.so"));
}

}  // namespace
}  // namespace nxl::test
