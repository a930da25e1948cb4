// The activation of gated products, one definition for all kernels that must agree to the bit.
#pragma once

namespace eddy {

__device__ inline float Silu(float a) { return a / (1.0f + expf(-a)); }

}  // namespace eddy
