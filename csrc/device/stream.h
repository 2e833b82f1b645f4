// SPDX-License-Identifier: Apache-2.0
// Streams of a neuron device. Every stream of a device issues into its core's one in-order queue.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>

#include "device/context.h"

namespace nxl::device {

// Note "Streams". A core runs its queue in order, so work issued on two streams of one device is ordered by the time
// of issue; that is a stronger order than PyTorch asks for, so any program correct for streams is correct here. A wait
// for an event of the same device therefore costs nothing, and a wait for one of another device blocks the calling
// thread until it is reached. A stream's priority is kept and shown, and cannot change the order.
//
// Stream ids: 0 is the default stream; others are (number << 2 | priority code) with number >= 1.

// The thread's current stream of `device`; the default stream until changed.
c10::Stream current_stream(c10::DeviceIndex device) noexcept;
c10::Stream exchange_current_stream(const c10::Stream& stream);
c10::Stream default_stream(c10::DeviceIndex device) noexcept;
// A stream of its own. Priorities as in CUDA: lower is more urgent; values are clamped to [-1, 0].
c10::Stream new_stream(c10::DeviceIndex device, int priority);
// One of the 32 streams per device and priority that libraries share, in turn.
c10::Stream pooled_stream(c10::DeviceIndex device, bool high_priority);
int stream_priority(c10::StreamId id) noexcept;

// True when everything issued so far is done.
bool stream_is_idle(const c10::Stream& stream) noexcept;

}  // namespace nxl::device
