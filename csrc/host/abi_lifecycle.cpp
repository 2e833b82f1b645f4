// SPDX-License-Identifier: Apache-2.0
// Exported functions: life cycle, versions, cores and memory statistics.
#include <algorithm>
#include <cstring>

#include "host/edge.h"

using namespace nxl::host;

namespace {

// Copies as much of `value` as the caller's older or newer struct has room for.
template <typename T>
NRT_STATUS copy_out(const T& value, T* target, size_t size, const char* what) {
  if (target == nullptr || size == 0) refuse(NRT_INVALID, what, ": no room for the result");
  std::memcpy(target, &value, std::min(size, sizeof(T)));
  return NRT_SUCCESS;
}

template <typename T>
T& required(T* pointer, const char* what) {
  if (pointer == nullptr) refuse(NRT_INVALID, what, " is null");
  return *pointer;
}

}  // namespace

NXL_HOST_EXPORT NRT_STATUS nrt_init(nrt_framework_type_t, const char*, const char*) {
  return at_edge<Needs::kNotClosed>(Call::nrt_init, [] {
    Runtime::instance().initialize();
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT void nrt_close(void) { Runtime::instance().close(); }

NXL_HOST_EXPORT NRT_STATUS nrt_get_version(nrt_version_t* version, size_t size) {
  return at_edge<Needs::kNotClosed>(Call::nrt_get_version, [&] {
    nrt_version_t value{};
    value.rt_major = NRT_API_VERSION_MAJOR;
    value.rt_minor = NRT_API_VERSION_MINOR;
    std::strncpy(value.rt_detail, "libnrt_host: the NRT interface on the CPU", sizeof(value.rt_detail) - 1);
    return copy_out(value, version, size, "nrt_version_t");
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t size) {
  return at_edge(Call::nrt_get_instance_info, [&] {
    nrt_instance_info_t value{};  // family 0 is UNKNOWN: no chip generation stands for the host
    std::strncpy(value.arch_name, "host", sizeof(value.arch_name) - 1);
    return copy_out(value, info, size, "nrt_instance_info_t");
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_get_total_vnc_count(uint32_t* count) {
  return at_edge<Needs::kNotClosed>(Call::nrt_get_total_vnc_count, [&] {
    required(count, "count") = kTotalCores;
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_get_visible_vnc_count(uint32_t* count) {
  return at_edge<Needs::kNotClosed>(Call::nrt_get_visible_vnc_count, [&] {
    // Once open, the answer is what was opened; the variables may have changed since.
    const bool open = Runtime::state() == NRT_SUCCESS;
    required(count, "count") = open ? static_cast<uint32_t>(Runtime::instance().cores().size())
                                    : static_cast<uint32_t>(CoreSelection::from_environment().count);
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats, size_t size_in,
                                                    size_t* size_out) {
  return at_edge(Call::nrt_get_vnc_memory_stats, [&] {
    const CoreMemory& memory = *Runtime::instance().core(vnc)->memory();
    const nrt_vnc_memory_stats_t value{memory.used(), memory.limit()};
    copy_out(value, stats, size_in, "nrt_vnc_memory_stats_t");
    if (size_out != nullptr) *size_out = std::min(size_in, sizeof(value));
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_host_device_id_get(int vnc, uint32_t* id) {
  return at_edge(Call::nrt_host_device_id_get, [&] {
    required(id, "id") = static_cast<uint32_t>(Runtime::instance().core(vnc)->absolute_id());
    return NRT_SUCCESS;
  });
}
