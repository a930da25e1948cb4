// Layers "swiglu" and "gelu": the feed-forward block, without biases and without state.
//   x <- x + W_down (silu(W_gate n) * (W_up n))     swiglu (Shazeer 2020, arXiv 2002.05202)
//   x <- x + W_down gelu(W_up n)                    gelu, exact: gelu(a) = a (1 + erf(a/sqrt 2)) /
//   2
// with n = RMSNorm(x).
//
// parameter   type   meaning
// size        int    I, the inner width
//
// weight            shape
// norm.weight       [D]
// gate.weight       [I, D]   swiglu only
// up.weight         [I, D]
// down.weight       [D, I]
#pragma once

#include <memory>
#include <string_view>

#include "kernels/layer.h"

namespace eddy {

// The table row; `name` is "swiglu" or "gelu".
const LayerType& MlpType(std::string_view name);

LayerNeeds MlpNeeds(const LayerSpec& spec, const DeviceTraits& traits);
std::unique_ptr<Layer> MakeMlpCpu(const LayerSpec& spec, const LayerParts& parts);

}  // namespace eddy
