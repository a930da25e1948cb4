// The scheduler's decision as a value.
#pragma once

#include <vector>

#include "engine/sequence.h"

namespace eddy {

// What one step will do, in this order. All sequences are owned by the scheduler and alive until
// Commit.
struct BatchPlan {
  struct Entry {
    Sequence* sequence;
    int rows;      // 1 .. sequence->pending()
    bool samples;  // these rows are its last pending ones, and it wants another token
    bool last;     // these rows are the last of a request with max_new_tokens == 0
  };
  std::vector<Sequence*> fills;  // new: slots get the initial values, or those of a checkpoint
  std::vector<Sequence*> saves;  // done: flush their records and copy them out
  std::vector<Entry> entries;    // feed so many pending tokens of each; single rows come first
  int rows = 0;
  bool empty() const { return fills.empty() && saves.empty() && entries.empty(); }
};

}  // namespace eddy
