// A device that is watched by the CPU: every layer runs on both, and they are compared.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace eddy {

// Hands everything on to `real`, but each Forward of a layer is done by the layer's CPU version
// too, from the same rows and the same state, and the first difference beyond rounding is reported
// by Finish as an error of the device: layer, field or output, and by how much. Where bfloat16
// matrices make a difference that is greater than usual, the CPU runs the layer again, at most
// `draws` times, each time with matrices moved in other directions by as much as that type rounds,
// to know how far rounding may lead. State is compared as its flushed record, so that flushes,
// which are points of rounding, come at other times than without; nothing is recorded, everything
// waits for the device, and memory is allocated as needed: for debugging and tests, not for
// service. Read-outs, embedding, head and sampler are not compared.
std::unique_ptr<Device> MakeCheckedDevice(std::unique_ptr<Device> real, int draws = 32);

}  // namespace eddy
