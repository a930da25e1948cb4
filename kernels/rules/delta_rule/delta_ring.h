// The ring of pending writes of a delta rule's state: what a record holds beside S so that S is
// written only at every C-th step. Derivation and rounding: kernels/rules/delta_rule/
// delta_rule_cuda.h. The CPU writes an S of float in place, without a ring.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/layer.h"
#include "kernels/rules/delta_rule/delta_rule.h"

namespace eddy {

enum class DeltaDecay { kNone, kHead, kChannel };

inline constexpr int kMostPendingUpdates = 16;

// Columns of S that share a count of pending writes; blocks own whole groups.
inline constexpr int64_t kDeltaCountColumns = 32;

// The state fields that C = `pending_updates` takes beside "state", all transient; none if C <= 1,
// when every step writes S.
//   ring_w      [HV, C-1, K]          write keys since the last flush, oldest first
//   ring_n      [HV, C-1, V]          corrected values beta e
//   ring_a      [HV, C-1] (kHead),    decay factors of those steps; absent with kNone
//               [HV, C-1, K] (kChannel)
//   ring_count  [HV, ceil(V / 32)]    int32: how many pairs, 0 .. C-1; the same number for each
//                                     group of columns, so that no block reads what another writes
// Entries from the count on are undefined.
std::vector<Field> DeltaRingFields(const DeltaRuleShape& shape, DeltaDecay decay,
                                   int pending_updates);

}  // namespace eddy
