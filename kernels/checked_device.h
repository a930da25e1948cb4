// A device that is watched by the CPU: every layer runs on both, and they are compared.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace eddy {

// Hands everything on to `real`, but each Forward of a layer is done by the layer's CPU version
// too, from the same rows and the same state, and the first difference beyond rounding is reported
// by Finish as an error of the device: layer, field or output, and by how much. With bfloat16 the
// CPU runs it once more, with matrices moved by as much as that rounds, to know how far rounding
// may lead. State is compared as its flushed record, so that flushes, which are points of rounding,
// come at other times than without; nothing is recorded, everything waits for the device, and
// memory is allocated as needed: for debugging and tests, not for service. Read-outs, embedding,
// head and sampler are not compared.
std::unique_ptr<Device> MakeCheckedDevice(std::unique_ptr<Device> real);

}  // namespace eddy
