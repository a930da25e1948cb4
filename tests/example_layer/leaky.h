// Layer "leaky", the worked example of CONTRIBUTING.md: a leaky integrator for each channel, the
// simplest recurrence there is (a first-order low-pass filter). No model uses it.
//   h <- sigmoid(a) * h + W_in n,  x <- x + W_out h       with n = RMSNorm(x)
//
// parameter   type   meaning
// size        int    S, the number of channels
//
// weight        shape           state   shape   a fresh slot holds
// norm.weight   [D]             h       [S]     0
// in.weight     [S, D]
// decay         [S]      a
// out.weight    [D, S]
#pragma once

#include <memory>

#include "kernels/layer.h"

namespace eddy {

const LayerType& LeakyType();  // the table row

LayerNeeds LeakyNeeds(const LayerSpec& spec, const DeviceTraits& traits);
std::unique_ptr<Layer> MakeLeakyCpu(const LayerSpec& spec, const LayerParts& parts);

}  // namespace eddy
