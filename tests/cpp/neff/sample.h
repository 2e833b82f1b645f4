// SPDX-License-Identifier: Apache-2.0
// NEFFs that the reader's tests and its fuzzer start from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "neff/writer.h"

namespace nxl::test {

// A host NEFF of a step with two inputs, an output, and an output that is the second input's memory.
inline neff::Contents host_contents() {
  neff::Contents contents;
  contents.name = "decode";
  contents.build_version = "1.0";
  contents.files["neff.json"] = R"({"version":1,"target":"host","compiler":"hostcc 0.1.0","name":"decode"})";
  contents.files["sg00/def.json"] = R"({"version":1,"target":"host","var":{
    "input0":{"type":"input","var_id":0,"size":24,"dtype":"f32","shape":[2,3]},
    "input1":{"type":"input","var_id":1,"size":16,"dtype":"bf16","shape":[8]},
    "output0":{"type":"output","var_id":0,"size":16,"dtype":"bf16","shape":[8],"alias":"input1"},
    "output1":{"type":"output","var_id":1,"size":8,"dtype":"i64","shape":[]}}})";
  contents.files["sg00/program.json"] = R"({"version":1,"arena_bytes":0,"buffers":[],"values":[],"steps":[]})";
  contents.files["sg00/constants.bin"] = std::string(1000, '\x01');
  return contents;
}

// What a chip NEFF shows to this reader: no target, engine files, variables of other types and with sparse ids.
inline neff::Contents chip_contents() {
  neff::Contents contents;
  contents.name = "decode";
  contents.files["neff.json"] = R"({"nodes":[]})";
  contents.files["sg00/Activation.json"] = "{}";
  contents.files["sg00/def.json"] = R"({"dma_queue":{},"var":{
    "input0":{"type":"input","var_id":7,"size":24},
    "weight":{"type":"file","var_id":3,"size":100,"file_name":"w.npy"},
    "scratch":{"type":"tmp-buf","var_id":4,"size":100},
    "output0":{"type":"output","var_id":9,"size":16}}})";
  return contents;
}

}  // namespace nxl::test
