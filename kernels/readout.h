// What layers can tell of a token beside their output.
#pragma once

#include <cstdint>

namespace eddy {

// Each is one float per row. Formulas stand with the rules that compute them; all are in the hidden
// units of the model, and none is a probability.
enum class Readout : uint8_t {
  // Kalman layers (kernels/rules/kalman/kalman.h), all states of a layer together.
  kPrecision,       // mean of lambda after the token
  kLeastPrecision,  // least lambda after the token
  kDeviation,       // mean over channels of the standard deviation of y
  kSurprise,        // mean squared normalised innovation; 1 if the filters' model is right
  kInformation,     // nats per channel that the token taught
  kSpread,          // share of the read-out that is uncertainty, 0 to 1
  // Delta layers (kernels/rules/delta_rule/delta_rule.h), means over the value heads.
  kResidual,     // |v - S'k| / |v| before the write: 0, the memory knew v
  kContraction,  // (1 - beta w.k)^2: what the write left of the squared residual
  kDecay,        // e^g: what was kept of S
};
inline constexpr int kReadouts = 9;

}  // namespace eddy
