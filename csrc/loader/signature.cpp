// SPDX-License-Identifier: Apache-2.0
// Reconciling the variables of the file with nrt_get_model_tensor_info.
#include "loader/signature.h"

#include <algorithm>
#include <optional>

namespace nxl::loader {
namespace {

std::optional<DType> dtype_of(nrt_dtype_t dtype) {
  switch (dtype) {
    case NRT_DTYPE_UINT64:
      return DType::kUInt64;
    case NRT_DTYPE_INT8:
      return DType::kInt8;
    case NRT_DTYPE_UINT8:
      return DType::kUInt8;
    case NRT_DTYPE_INT16:
      return DType::kInt16;
    case NRT_DTYPE_UINT16:
      return DType::kUInt16;
    case NRT_DTYPE_BFLOAT16:
      return DType::kBFloat16;
    case NRT_DTYPE_FLOAT16:
      return DType::kFloat16;
    case NRT_DTYPE_INT32:
      return DType::kInt32;
    case NRT_DTYPE_UINT32:
      return DType::kUInt32;
    case NRT_DTYPE_FLOAT32:
      return DType::kFloat32;
    case NRT_DTYPE_INT64:
      return DType::kInt64;
    case NRT_DTYPE_FP8_E4:
      return DType::kFloat8E4M3FN;
    case NRT_DTYPE_FP8_E5:
      return DType::kFloat8E5M2;
    default:
      return std::nullopt;  // FP32R, FP8_E3 and unknown have no torch dtype
  }
}

const neff::Variable* find(const std::vector<neff::Variable>& variables, const std::string& name) {
  const auto found = std::find_if(variables.begin(), variables.end(), [&](const auto& v) { return v.name == name; });
  return found == variables.end() ? nullptr : &*found;
}

void check_agreement(const std::vector<neff::Variable>& stated, const std::vector<nrt::ModelTensor>& loaded,
                     bool output) {
  size_t count = 0;
  for (const nrt::ModelTensor& tensor : loaded) {
    if (tensor.is_output != output) continue;
    ++count;
    const neff::Variable* variable = find(stated, tensor.name);
    NXL_CHECK(variable != nullptr && variable->bytes == tensor.bytes, kInvalid, "the runtime loaded '", tensor.name,
              "' with ", tensor.bytes, " bytes, the NEFF states ",
              variable == nullptr ? std::string("no such variable") : std::to_string(variable->bytes) + " bytes");
  }
  NXL_CHECK(count == stated.size(), kInvalid, "the runtime loaded ", count, output ? " outputs" : " inputs",
            ", the NEFF states ", stated.size());
}

std::vector<neff::Variable> from_runtime(const std::vector<neff::Variable>& stated,
                                         const std::vector<nrt::ModelTensor>& loaded, bool output) {
  std::vector<neff::Variable> out;
  for (const nrt::ModelTensor& tensor : loaded) {
    if (tensor.is_output != output) continue;
    neff::Variable variable;
    variable.name = tensor.name;
    variable.bytes = tensor.bytes;
    if (const std::optional<DType> dtype = dtype_of(tensor.dtype)) {
      variable.dtype = *dtype;
      variable.shape = tensor.shape;
      variable.has_shape = true;
    }
    if (const neff::Variable* named = find(stated, tensor.name)) variable.alias_input = named->alias_input;
    out.push_back(std::move(variable));
  }
  const auto position = [&](const neff::Variable& variable) {
    const neff::Variable* named = find(stated, variable.name);
    return named == nullptr ? stated.size() : static_cast<size_t>(named - stated.data());
  };
  std::stable_sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return position(a) < position(b); });
  return out;
}

}  // namespace

Signature Signature::of(const neff::Neff& neff, const nrt::Model& model) {
  const std::vector<nrt::ModelTensor> loaded = model.tensors();
  Signature signature;
  if (neff.target() == "host") {
    check_agreement(neff.inputs(), loaded, false);
    check_agreement(neff.outputs(), loaded, true);
    signature.inputs = neff.inputs();
    signature.outputs = neff.outputs();
  } else {
    signature.inputs = from_runtime(neff.inputs(), loaded, false);
    signature.outputs = from_runtime(neff.outputs(), loaded, true);
    // An alias counts in the file's list of inputs; here it must count in this one.
    for (neff::Variable& output : signature.outputs) {
      if (output.alias_input < 0) continue;
      const std::string& name = neff.inputs()[static_cast<size_t>(output.alias_input)].name;
      const neff::Variable* input = find(signature.inputs, name);
      NXL_CHECK(input != nullptr, kInvalid, "the NEFF states that output '", output.name, "' is input '", name,
                "' updated in place, and the runtime loaded no input of that name");
      output.alias_input = static_cast<int>(input - signature.inputs.data());
    }
  }
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    if (signature.outputs[i].alias_input >= 0) signature.aliased_outputs.push_back(i);
  }
  return signature;
}

}  // namespace nxl::loader
