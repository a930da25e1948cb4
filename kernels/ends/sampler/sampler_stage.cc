#include "kernels/ends/sampler/sampler_stage.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/ends/sampler/philox.h"

namespace eddy {
namespace {

// The least float g with e^g >= min_p, so that comparing gaps is the same as comparing weights.
float MinGap(float min_p) {
  if (!(min_p > 0)) return -std::numeric_limits<float>::infinity();
  if (min_p >= 1) return 0;
  const auto stays = [&](float gap) {
    return std::exp(static_cast<double>(gap)) >= static_cast<double>(min_p);
  };
  constexpr float kUp = std::numeric_limits<float>::infinity();
  float gap = std::min(0.0f, std::log(min_p));
  while (gap < 0 && !stays(gap)) gap = std::nextafter(gap, kUp);
  while (stays(std::nextafter(gap, -kUp))) gap = std::nextafter(gap, -kUp);
  return gap;
}

}  // namespace

SampleStage::SampleStage(int64_t vocab, const SampleLists& lists)
    : lists_(lists), edit_of_(static_cast<size_t>(vocab), -1) {
  // Any one row finds room.
  EDDY_CHECK(lists.edits.size() >= static_cast<size_t>(vocab) && lists.also.size() >= kMostAlso &&
             lists.top.size() >= kMostTop && lists.also_logprobs.size() == lists.also.size());
  std::fill(lists.rows.begin(), lists.rows.end(), StagedRow{});
}

int SampleStage::Stage(std::span<const int32_t> rows, std::span<const SampleRow> samples) {
  EDDY_CHECK(rows.size() == samples.size() && rows.size() <= lists_.rows.size());
  // What an earlier tile left behind the new rows must not be done again.
  for (size_t i = 0; i < staged_; ++i) lists_.rows[i] = {};
  staged_ = edits_ = also_ = top_ = 0;
  while (staged_ < rows.size() && Add(rows[staged_], samples[staged_])) ++staged_;
  EDDY_CHECK(staged_ > 0 || rows.empty());
  return staged();
}

bool SampleStage::Add(int32_t row, const SampleRow& sample) {
  const auto vocab = static_cast<int32_t>(edit_of_.size());
  const size_t top = static_cast<size_t>(std::clamp(sample.top, 0, vocab));
  EDDY_CHECK(top <= kMostTop && sample.also.size() <= kMostAlso);
  if (top > lists_.top.size() - top_ || sample.also.size() > lists_.also.size() - also_) {
    return false;
  }
  StagedRow staged = {.task = SampleTask::kTarget,
                      .row = row,
                      .target = sample.target,
                      .measured = sample.measured ? 1 : 0,
                      .first_edit = static_cast<int32_t>(edits_),
                      .first_also = static_cast<int32_t>(also_),
                      .also = static_cast<int32_t>(sample.also.size()),
                      .first_top = static_cast<int32_t>(top_),
                      .top = static_cast<int32_t>(top)};
  if (sample.target < 0) {
    const SamplingParams& params = *sample.params;
    staged.scale = 1 / params.temperature;
    staged.task = std::isfinite(staged.scale) ? SampleTask::kDraw : SampleTask::kGreatest;
    staged.top_k = std::max(params.top_k, 0);
    staged.top_p = params.top_p;
    staged.min_gap = MinGap(params.min_p);
    staged.typical_p = params.typical_p;
    staged.uniform = UniformAt(params.seed, sample.position);
    if (!AddEdits(sample, &staged)) return false;
  }
  std::copy(sample.also.begin(), sample.also.end(), lists_.also.begin() + also_);
  also_ += sample.also.size();
  top_ += top;
  lists_.rows[staged_] = staged;
  return true;
}

bool SampleStage::AddEdits(const SampleRow& sample, StagedRow* staged) {
  const SamplingParams& params = *sample.params;
  const size_t first = edits_;
  bool fits = true;
  for (const auto& [token, bias] : params.logit_bias) {
    LogitEdit* const edit = EditOf(token);
    fits = fits && edit != nullptr;
    if (edit != nullptr) edit->bias += bias;
  }
  fits =
      fits && Mark(params.allowed, LogitEdit::kAllowed) && Mark(params.banned, LogitEdit::kBarred);
  if (fits && sample.generated < params.min_new_tokens) {
    fits = Mark(params.ending_tokens, LogitEdit::kBarred);
  }
  if (fits && params.repetition_penalty != 1.0f) fits = Mark(sample.past, LogitEdit::kSeen);
  if (fits && (params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f)) {
    for (int32_t token : sample.past.last(static_cast<size_t>(sample.generated))) {
      LogitEdit* const edit = EditOf(token);
      fits = fits && edit != nullptr;
      if (edit != nullptr) ++edit->generated;
    }
  }
  for (const LogitEdit& edit : lists_.edits.subspan(first, edits_ - first)) {
    edit_of_[static_cast<size_t>(edit.token)] = -1;
  }
  if (!fits) {
    edits_ = first;
    return false;
  }
  staged->only_allowed = params.allowed.empty() ? 0 : 1;
  staged->repetition = params.repetition_penalty;
  staged->frequency = params.frequency_penalty;
  staged->presence = params.presence_penalty;
  staged->edits = static_cast<int32_t>(edits_ - first);
  return true;
}

LogitEdit* SampleStage::EditOf(int32_t token) {
  EDDY_DCHECK(token >= 0 && static_cast<size_t>(token) < edit_of_.size());
  int32_t& at = edit_of_[static_cast<size_t>(token)];
  if (at < 0) {
    if (edits_ == lists_.edits.size()) return nullptr;
    at = static_cast<int32_t>(edits_);
    lists_.edits[edits_++] = {.token = token};
  }
  return &lists_.edits[static_cast<size_t>(at)];
}

bool SampleStage::Mark(std::span<const int32_t> tokens, uint32_t mark) {
  for (int32_t token : tokens) {
    LogitEdit* const edit = EditOf(token);
    if (edit == nullptr) return false;
    edit->marks |= mark;
  }
  return true;
}

void SampleStage::Collect(std::span<SampleResult> results) const {
  EDDY_CHECK(results.size() == staged_);
  for (size_t i = 0; i < staged_; ++i) {
    const StagedRow& staged = lists_.rows[i];
    const RowOutcome& outcome = lists_.outcomes[i];
    SampleResult& result = results[i];
    result.finite = outcome.finite != 0;
    result.token = outcome.token;
    result.logprob = outcome.logprob;
    result.rank = outcome.rank;
    result.entropy = outcome.entropy;
    result.top.clear();
    result.also.clear();
    if (!result.finite) continue;
    const auto top =
        lists_.top.subspan(static_cast<size_t>(staged.first_top), static_cast<size_t>(staged.top));
    result.top.assign(top.begin(), top.end());
    const auto also = lists_.also_logprobs.subspan(static_cast<size_t>(staged.first_also),
                                                   static_cast<size_t>(staged.also));
    result.also.assign(also.begin(), also.end());
  }
}

}  // namespace eddy
