// SPDX-License-Identifier: Apache-2.0
// The test's side of libfake_nrt.so, and NEFFs for it.
#include <sstream>

#include "core/shared_library.h"
#include "fake_nrt/fake_nrt.h"
#include "neff/writer.h"

namespace nxl::test {

FakeNrt& fake_nrt() {
  static SharedLibrary* const library = new SharedLibrary(SharedLibrary::open(FAKE_NRT_LIBRARY));
  return *reinterpret_cast<FakeNrt* (*)()>(library->symbol("fake_nrt_instance"))();
}

std::vector<std::byte> make_neff(const std::string& name, const Signature& signature, const std::string& target) {
  std::ostringstream variables;
  const char* separator = "";
  const auto append = [&](const std::map<std::string, uint64_t>& of, const char* type) {
    int id = 0;
    for (const auto& [variable, bytes] : of) {
      variables << separator << '"' << variable << R"(":{"type":")" << type << R"(","var_id":)" << id++ << R"(,"size":)"
                << bytes << R"(,"dtype":"u8","shape":[)" << bytes << "]";
      const auto alias = signature.aliases.find(variable);
      if (alias != signature.aliases.end()) variables << R"(,"alias":")" << alias->second << '"';
      variables << '}';
      separator = ",";
    }
  };
  append(signature.inputs, "input");
  append(signature.outputs, "output");
  neff::Contents contents;
  contents.name = name;
  contents.files["neff.json"] = R"({"version":1,"target":")" + target + R"("})";
  contents.files["sg00/def.json"] = R"({"version":1,"target":")" + target + R"(","var":{)" + variables.str() + "}}";
  return neff::write(contents);
}

}  // namespace nxl::test
