// The scheduler's decision as a value.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sequence.h"

namespace eddy {

// What one step will do, in this order. All sequences are owned by the scheduler and alive until
// Commit.
struct BatchPlan {
  struct Entry {
    Sequence* sequence = nullptr;
    int rows = 0;          // 1 .. sequence->pending()
    bool samples = false;  // these rows are its last pending ones, and it wants another token
    // These rows end with the last token of a request with max_new_tokens == 0, so the logits of
    // the last row are those after the whole prompt. Never if that token is held back.
    bool last = false;
  };
  // Slots that were given back since the last plan, for debug builds to poison; some may be filled
  // anew below.
  std::vector<int32_t> freed = {};
  std::vector<Sequence*> fills = {};  // new: slots get the initial values, or a checkpoint's
  // Done: flush their records and copy them out, or look at them for Request::report.state_stats.
  std::vector<Sequence*> saves = {};
  std::vector<Entry> entries = {};  // feed so many pending tokens of each
  int single_row_sequences = 0;     // the first so many entries: one row each, nothing pending
  int rows = 0;                     // of all entries
  bool empty() const { return fills.empty() && saves.empty() && entries.empty(); }
};

}  // namespace eddy
