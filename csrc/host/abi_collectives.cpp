// SPDX-License-Identifier: Apache-2.0
// Exported functions: meeting the other ranks outside a NEFF.
#include "host/collectives/collective.h"
#include "host/edge.h"

using namespace nxl::host;

namespace {

std::shared_ptr<World> world_of(int32_t vnc, uint32_t id, uint32_t count) {
  Runtime::instance().core(vnc);
  return Worlds::instance().get(id, count);
}

}  // namespace

NXL_HOST_EXPORT NRT_STATUS nrt_build_global_comm(int32_t vnc, uint32_t g_device_id, uint32_t g_device_count) {
  return at_edge(Call::nrt_build_global_comm, [&] {
    const auto world = world_of(vnc, g_device_id, g_device_count);
    if (g_device_count > 1) world->connect();
    return NRT_SUCCESS;
  });
}

NXL_HOST_EXPORT NRT_STATUS nrt_barrier(int32_t vnc, uint32_t g_device_id, uint32_t g_device_count) {
  return at_edge(Call::nrt_barrier, [&] {
    wait_for_all(*world_of(vnc, g_device_id, g_device_count));
    return NRT_SUCCESS;
  });
}
