// Decoding rows of layer "delta" in one kernel: what DeltaPrepareCuda, DeltaRuleStepCuda and
// DeltaGateCuda do one after another, to the same bits. A block has a whole value head, so nothing
// goes from block to block.
#pragma once

#include "kernels/layers/delta/delta_parts_cuda.h"
#include "kernels/rules/delta_rule/delta_rule_cuda.h"

namespace eddy {

// Whether that pays for so many rows: there is such a kernel, for heads of 64 or 128, each value
// head with q and k of its own; and heads are so few that the way from kernel to kernel is the
// longest.
bool DeltaTokenFits(const DeltaOptions& options, int rows);

// The decoding rows of `step`. `prepare` of that part; q, k, v, w, beta and decay of its results
// are not written. Of `rule`, q, k, v, w, beta and out are not looked at, and of the decay only
// whether there is one. Of `gate`, o is not looked at.
void DeltaTokenCuda(const Step& step, const DeltaOptions& options, const DeltaPrepareArgs& prepare,
                    const DeltaRuleCudaArgs& rule, const DeltaGateArgs& gate);

}  // namespace eddy
