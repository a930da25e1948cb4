// The delta rule on an S of bfloat16, on the CPU. All arithmetic is in float, and S is rounded as
// seldom as by the GPU, whose deferred write-back this follows (formulas: delta_rule_cuda.h): of
// the first step.single_row_sequences sequences a token becomes a pair in the ring, and S is
// written when that is full; of all others it is written once, behind their last row.
#pragma once

#include "kernels/rules/delta_rule/delta_rule.h"
#include "kernels/step.h"

namespace eddy {

// What DeltaRuleCpu does with sequence `index` of the step, which has a slot and rows.
void DeltaRuleAdvanceHalf(const Step& step, const DeltaRuleArgs& args, int index);

// Folds the pending pairs of all sequences of the step into S; their rows, if any, are not looked
// at. Changes no bit of a sequence that has none pending.
void DeltaRuleFlushHalf(const Step& step, const DeltaRuleArgs& args);

}  // namespace eddy
