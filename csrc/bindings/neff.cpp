// SPDX-License-Identifier: Apache-2.0
// _C: the contents of a NEFF as plain data.
#include <span>
#include <string>
#include <string_view>

#include "bindings/bindings.h"
#include "neff/reader.h"

namespace nxl::bindings {
namespace py = pybind11;
namespace {

std::string hex(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

py::dict describe(const neff::Variable& variable) {
  py::dict entry;
  entry["name"] = variable.name;
  entry["bytes"] = variable.bytes;
  entry["dtype"] = variable.has_shape ? py::object(py::str(dtype_name(variable.dtype))) : py::none();
  entry["shape"] = py::none();
  if (variable.has_shape) {
    py::list shape;
    for (const int64_t extent : variable.shape) shape.append(extent);
    entry["shape"] = shape;
  }
  entry["alias_input"] = variable.alias_input;
  return entry;
}

py::dict neff_info(const py::bytes& content, bool verify_digest) {
  const std::string_view view = content;
  const neff::Neff neff = neff::Neff::open(std::as_bytes(std::span(view.data(), view.size())), verify_digest);
  const neff::Header& header = neff.header();
  py::dict fields;
  fields["pkg_version"] = header.pkg_version;
  fields["data_size"] = header.data_size;
  fields["version"] = std::to_string(header.version_major) + "." + std::to_string(header.version_minor);
  fields["build_version"] = header.build_version;
  fields["num_tpb"] = header.num_tpb;
  fields["hash"] = hex(header.hash);
  fields["uuid"] = hex(header.uuid);
  fields["name"] = header.name;
  fields["feature_bits"] = header.feature_bits;
  fields["lnc_size"] = header.lnc_size;
  py::list inputs;
  for (const neff::Variable& variable : neff.inputs()) inputs.append(describe(variable));
  py::list outputs;
  for (const neff::Variable& variable : neff.outputs()) outputs.append(describe(variable));
  py::dict files;
  for (const auto& [path, bytes] : neff.files()) files[py::str(path)] = bytes.size();
  py::dict info;
  info["target"] = neff.target();
  info["header"] = fields;
  info["inputs"] = inputs;
  info["outputs"] = outputs;
  info["files"] = files;
  return info;
}

}  // namespace

void bind_neff(py::module_& m) {
  m.def("neff_info", &neff_info, py::arg("content"), py::arg("verify_digest") = true,
        "target, header, inputs, outputs (with alias_input, -1 for none) and files (path to bytes) of a NEFF. "
        "ValueError names the field, the value and the limit when it is not well-formed.");
}

}  // namespace nxl::bindings
