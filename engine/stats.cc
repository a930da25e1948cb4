#include "engine/stats.h"

#include <algorithm>

namespace eddy {

WaitingLoad operator+(const WaitingLoad& a, const WaitingLoad& b) {
  return {.requests = a.requests + b.requests,
          .prompt_tokens = a.prompt_tokens + b.prompt_tokens,
          .oldest = std::min(a.oldest, b.oldest)};
}

StepStats CountStep(const BatchPlan& plan, const StepResult& result) {
  StepStats stats;
  stats.rows = plan.rows;
  stats.sequences = static_cast<int>(plan.entries.size());
  stats.single_row_sequences = plan.single_row_sequences;
  for (const BatchPlan::Entry& entry : plan.entries) {
    const int unread = entry.sequence->prompt_end - entry.sequence->consumed;
    stats.prompt_rows += std::clamp(unread, 0, entry.rows);
  }
  for (const EntryResult& entry : result.entries) {
    stats.sampled += entry.sampled.has_value() ? 1 : 0;
    stats.not_finite += entry.not_finite.has_value() ? 1 : 0;
  }
  stats.fills = static_cast<int>(plan.fills.size());
  for (const Sequence* sequence : plan.fills) {
    stats.fills_from_checkpoint += sequence->request.start != nullptr ? 1 : 0;
  }
  stats.saves = static_cast<int>(plan.saves.size());
  stats.recorded = result.recorded;
  return stats;
}

}  // namespace eddy
