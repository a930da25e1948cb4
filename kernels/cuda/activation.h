// Element-wise functions that the kernels apply to what they read or write.
#pragma once

#include <cstdint>

namespace eddy {

enum class Activation : uint8_t {
  kNone,
  kSilu,     // x sigmoid(x)
  kGelu,     // the exact one, x Phi(x)
  kRelu,     // max(x, 0)
  kEluPlus1  // x > 0 ? x + 1 : e^x
};

}  // namespace eddy
