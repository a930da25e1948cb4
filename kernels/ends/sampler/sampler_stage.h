// What the GPU's sampler and the host tell each other about the rows of a tile, and the host's half
// of the work: parameters and lists become fixed records in page-locked memory. Plain C++; engine
// thread only; allocates only when made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling.h"

namespace eddy {

// One logit that is changed before a token is drawn. All that a row says of one token is in one.
struct LogitEdit {
  static constexpr uint32_t kAllowed = 1, kBarred = 2, kSeen = 4;
  int32_t token = 0;
  float bias = 0;
  int32_t generated = 0;  // how often; 0 where no penalty counts
  uint32_t marks = 0;     // kSeen only where a repetition penalty is asked for
};

enum class SampleTask : int32_t {
  kNothing,   // padding
  kTarget,    // report on `target`
  kGreatest,  // take the greatest logit
  kDraw,
};

// What to do with one row of logits.
struct StagedRow {
  SampleTask task = SampleTask::kNothing;
  int32_t row = 0;  // of x
  int32_t target = -1;
  int32_t top_k = 0;     // 0: all
  float scale = 1;       // 1 / temperature
  float top_p = 1;       // 1: all
  float min_gap = 0;     // least logit - greatest logit, both scaled, that min_p leaves
  float typical_p = 1;   // 1: all
  float repetition = 1;  // penalties
  float frequency = 0;
  float presence = 0;
  int32_t measured = 1;      // as SampleRow
  int32_t only_allowed = 0;  // 1: tokens without an edit marked kAllowed are barred
  double uniform = 0;
  // Where the row's part of each list begins, and how much it is.
  int32_t first_edit = 0, edits = 0;
  int32_t first_also = 0, also = 0;
  int32_t first_top = 0, top = 0;
};

// What became of it.
struct RowOutcome {
  int32_t token = -1;
  int32_t rank = 0;
  float logprob = 0;
  float entropy = 0;
  int32_t finite = 0;
};

// Page-locked memory that host and device see at one address.
struct SampleLists {
  std::span<StagedRow> rows;       // [max_rows]; copied to the device by Run
  std::span<LogitEdit> edits;      // at least twice the vocabulary
  std::span<int32_t> also;         // at least kMostAlso
  std::span<RowOutcome> outcomes;  // [max_rows]; this and the following are the device's to write
  std::span<Candidate> top;        // at least kMostTop
  std::span<float> also_logprobs;  // as many as `also`
};

class SampleStage {
 public:
  SampleStage(int64_t vocab, const SampleLists& lists);
  // As Ends::Stage.
  int Stage(std::span<const int32_t> rows, std::span<const SampleRow> samples);
  int staged() const { return static_cast<int>(staged_); }
  // As Ends::Collect.
  void Collect(std::span<SampleResult> results) const;

 private:
  // False, and nothing taken, if a list is full.
  bool Add(int32_t row, const SampleRow& sample);
  bool AddEdits(const SampleRow& sample, StagedRow* staged);
  // Null if the list is full.
  LogitEdit* EditOf(int32_t token);
  bool Mark(std::span<const int32_t> tokens, uint32_t mark);

  const SampleLists lists_;
  std::vector<int32_t> edit_of_;  // [vocab]: a token's edit of the row that is being added, or -1
  size_t staged_ = 0;             // rows, and what they took of each list
  size_t edits_ = 0, also_ = 0, top_ = 0;
};

}  // namespace eddy
