#include "engine/device_executor.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace eddy {
namespace {

TokenReport ReportOf(SampleResult& result) {
  return {.token = result.token,
          .logprob = result.logprob,
          .rank = result.rank,
          .entropy = result.entropy,
          .top = std::move(result.top)};
}

// Of the sequences that get rows. A lease that is a ring is as long as any can be, so it is the
// longest of its step, and its line in the step is read modulo its own length.
int LongestLease(const BatchPlan& plan) {
  size_t longest = 0;
  for (const BatchPlan::Entry& entry : plan.entries) {
    longest = std::max(longest, entry.sequence->pages->pages().size());
  }
  return static_cast<int>(longest);
}

}  // namespace

absl::StatusOr<StepResult> DeviceExecutor::Run(const BatchPlan& plan) {
  StepResult result;
  for (int32_t slot : plan.freed) parts_.records.Poison(slot);
  for (const Sequence* sequence : plan.fills) Fill(*sequence);
  if (!plan.saves.empty()) EDDY_RETURN_IF_ERROR(Save(plan.saves, &result));
  if (!plan.entries.empty()) EDDY_RETURN_IF_ERROR(Feed(plan, &result));
  EDDY_RETURN_IF_ERROR(Finish());
  return result;
}

absl::Status DeviceExecutor::Finish() {
  const std::optional<std::string> error = parts_.device->Finish();
  return error ? absl::UnavailableError(*error) : absl::OkStatus();
}

void DeviceExecutor::Fill(const Sequence& sequence) {
  const Checkpoint* const start = sequence.request.start.get();
  parts_.kv.Poison(sequence.pages->pages());
  if (start == nullptr) return parts_.records.Fill(sequence.slot->index());
  // Whoever brought the checkpoint has compared it with the model.
  EDDY_CHECK(start->model_hash == parts_.model_hash);
  parts_.records.Fill(sequence.slot->index(), start->record);
  parts_.kv.Fill(sequence.pages->pages(), start->position, start->kv);
}

// Without the keys and values if the request keeps no state.
std::shared_ptr<Checkpoint> DeviceExecutor::Copy(const Sequence& sequence) {
  auto checkpoint = std::make_shared<Checkpoint>();
  checkpoint->model_hash = parts_.model_hash;
  checkpoint->position = sequence.position();
  checkpoint->unfed.assign(sequence.tokens.begin() + sequence.consumed, sequence.tokens.end());
  checkpoint->record.resize(static_cast<size_t>(parts_.records.layout().persistent_bytes()));
  parts_.records.Save(sequence.slot->index(), checkpoint->record);
  if (!sequence.request.keep_state) return checkpoint;
  const int64_t kv_bytes = parts_.kv.layout().checkpoint_bytes(checkpoint->position);
  checkpoint->kv.resize(static_cast<size_t>(kv_bytes));
  parts_.kv.Save(sequence.pages->pages(), checkpoint->position, checkpoint->kv);
  return checkpoint;
}

std::vector<FieldStats> DeviceExecutor::Stats(std::span<const std::byte> record) const {
  std::vector<FieldStats> all = parts_.records.Stats(record);
  for (FieldStats& stats : all) {
    const BlockName& block = parts_.blocks[static_cast<size_t>(stats.layer)];
    stats.layer = block.layer;
    stats.layer_type = block.type;
  }
  return all;
}

absl::Status DeviceExecutor::Save(const std::vector<Sequence*>& done, StepResult* result) {
  parts_.steps.Clear(/*max_pages=*/0);
  for (const Sequence* sequence : done) {
    parts_.steps.Add(sequence->slot->index(), sequence->position(), /*tokens=*/{}, /*pages=*/{});
  }
  parts_.model.Flush(parts_.steps.Upload(/*single_row_sequences=*/0));
  std::vector<std::shared_ptr<Checkpoint>> copies;
  for (const Sequence* sequence : done) copies.push_back(Copy(*sequence));
  // The step arrays are used again, and the copies are to be on the host.
  EDDY_RETURN_IF_ERROR(Finish());
  for (size_t i = 0; i < done.size(); ++i) {
    Saved saved;
    if (done[i]->request.report.state_stats) saved.stats = Stats(copies[i]->record);
    if (done[i]->request.keep_state) saved.state = std::move(copies[i]);
    result->saved.push_back(std::move(saved));
  }
  return absl::OkStatus();
}

absl::Status DeviceExecutor::Feed(const BatchPlan& plan, StepResult* result) {
  rows_.clear();
  wanted_.clear();
  samples_.clear();
  asks_ = false;
  int first_row = 0;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    WantRowsOf(plan.entries[i], i, first_row);
    first_row += plan.entries[i].rows;
  }
  const int bucket = BucketFor(plan);
  parts_.steps.Clear(bucket > 0 ? parts_.pages_per_sequence : LongestLease(plan));
  for (const BatchPlan::Entry& entry : plan.entries) {
    const Sequence& sequence = *entry.sequence;
    parts_.steps.Add(
        sequence.slot->index(), sequence.position(),
        std::span(sequence.tokens)
            .subspan(static_cast<size_t>(sequence.consumed), static_cast<size_t>(entry.rows)),
        sequence.pages->pages());
  }
  if (bucket > 0) {
    parts_.steps.Pad(bucket);
    recorded_.Run(bucket);
    result->recorded = true;
    EDDY_RETURN_IF_ERROR(Finish());
    parts_.model.ends().Collect(std::span(results_).first(rows_.size()));
    return Report(plan, result);
  }
  Step step = parts_.steps.Upload(plan.single_row_sequences);
  if (asks_) step.readouts = parts_.readouts.on_device();
  const TensorView x = parts_.model.Forward(step);
  if (asks_) parts_.readouts.Fetch(step.rows);
  EDDY_RETURN_IF_ERROR(RunHead(x));
  return Report(plan, result);
}

void DeviceExecutor::RecordSteps(int most_sequences) {
  const int most = std::min(most_sequences, parts_.logit_rows);
  recorded_ = RecordedSteps(
      parts_.device, most,
      [this](int bucket) {
        parts_.steps.Clear(parts_.pages_per_sequence);
        parts_.steps.Pad(bucket);
        parts_.model.ends().Stage({}, {});
      },
      [this](int bucket) { EnqueueDecodingStep(bucket); });
}

void DeviceExecutor::EnqueueDecodingStep(int bucket) {
  const TensorView x = parts_.model.Forward(parts_.steps.Upload(bucket));
  parts_.model.ends().Run(bucket, x,
                          {.data = parts_.logits.data(), .shape = {bucket, parts_.vocab, 1, 1}});
}

int DeviceExecutor::BucketFor(const BatchPlan& plan) {
  const auto sequences = static_cast<int>(plan.entries.size());
  const int bucket = recorded_.BucketFor(sequences);
  const auto wanted = static_cast<int>(rows_.size());
  if (plan.single_row_sequences != sequences || asks_ || wanted > bucket) return 0;
  // What is wanted may be too much for one go.
  if (parts_.model.ends().Stage(rows_, samples_) != wanted) return 0;
  if (results_.size() < rows_.size()) results_.resize(rows_.size());
  return bucket;
}

void DeviceExecutor::WantRowsOf(const BatchPlan::Entry& entry, size_t index, int first_row) {
  const Sequence& sequence = *entry.sequence;
  const ReportOptions& report = sequence.request.report;
  const std::span<const int32_t> tokens = sequence.tokens;
  const Sequence::Range scored = sequence.scored_by(entry.rows);
  for (int i = scored.begin; i < scored.end; ++i) {
    const int ahead = i - 1 - sequence.consumed;  // the row of the token before
    asks_ |= report.uncertainty;
    Want(first_row + ahead,
         {.entry = index, .use = Wanted::kScored, .position = sequence.position() + ahead},
         {.target = tokens[static_cast<size_t>(i)],
          .position = sequence.position() + ahead + 1,
          .past = tokens.first(static_cast<size_t>(i)),
          .top = report.top});
  }
  const int64_t last_position = sequence.position() + entry.rows - 1;
  const int last_row = first_row + entry.rows - 1;
  if (entry.samples) {
    asks_ |= report.uncertainty;
    Want(last_row, {.entry = index, .use = Wanted::kSampled, .position = last_position},
         {.params = &sequence.request.sampling,
          .position = last_position + 1,
          .past = tokens,
          .generated = sequence.generated,
          .top = report.logprobs ? report.top : 0,
          .measured = report.logprobs || report.uncertainty});
  }
  if (entry.last && (report.top > 0 || !report.next_tokens.empty())) {
    // No token is drawn here, but a row without parameters must name one to report on.
    Want(last_row, {.entry = index, .use = Wanted::kNext, .position = last_position},
         {.target = 0,
          .position = last_position + 1,
          .past = tokens,
          .top = report.top,
          .also = report.next_tokens});
  }
}

void DeviceExecutor::Want(int row, const Wanted& wanted, const SampleRow& sample) {
  rows_.push_back(row);
  wanted_.push_back(wanted);
  samples_.push_back(sample);
}

absl::Status DeviceExecutor::RunHead(TensorView x) {
  if (results_.size() < rows_.size()) results_.resize(rows_.size());
  Ends& ends = parts_.model.ends();
  size_t done = 0;
  // Once at least: a step of which nothing is wanted is to be waited for as well.
  do {
    const size_t most = std::min(static_cast<size_t>(parts_.logit_rows), rows_.size() - done);
    const int taken =
        ends.Stage(std::span(rows_).subspan(done, most), std::span(samples_).subspan(done, most));
    ends.Run(taken, x, {.data = parts_.logits.data(), .shape = {taken, parts_.vocab, 1, 1}});
    EDDY_RETURN_IF_ERROR(Finish());
    const auto rows = static_cast<size_t>(taken);
    ends.Collect(std::span(results_).subspan(done, rows));
    done += rows;
  } while (done < rows_.size());
  return absl::OkStatus();
}

absl::Status DeviceExecutor::Report(const BatchPlan& plan, StepResult* result) {
  result->entries.resize(plan.entries.size());
  for (size_t i = 0; i < wanted_.size(); ++i) {
    EntryResult& entry = result->entries[wanted_[i].entry];
    if (entry.not_finite || entry.barred) continue;
    if (!results_[i].finite) {
      entry = {};
      EDDY_ASSIGN_OR_RETURN(entry.not_finite,
                            Diagnose(plan.entries[wanted_[i].entry], wanted_[i].position));
      continue;
    }
    if (wanted_[i].use == Wanted::kSampled && results_[i].token < 0) {
      entry = {.barred = true};
      continue;
    }
    const bool asks = plan.entries[wanted_[i].entry].sequence->request.report.uncertainty;
    switch (wanted_[i].use) {
      case Wanted::kScored:
        entry.scored.push_back(ReportOf(results_[i]));
        if (asks) parts_.readouts.Tell(rows_[i], &entry.scored.back());
        break;
      case Wanted::kSampled:
        entry.sampled = ReportOf(results_[i]);
        if (asks) parts_.readouts.Tell(rows_[i], &*entry.sampled);
        break;
      case Wanted::kNext:
        entry.next = std::move(results_[i].also);
        entry.next_top = std::move(results_[i].top);
        break;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<NotFinite> DeviceExecutor::Diagnose(const BatchPlan::Entry& entry,
                                                   int64_t position) {
  const Sequence& sequence = *entry.sequence;
  const int32_t slot = sequence.slot->index();
  parts_.steps.Clear(/*max_pages=*/0);
  parts_.steps.Add(slot, position, /*tokens=*/{}, /*pages=*/{});
  parts_.model.Flush(parts_.steps.Upload(/*single_row_sequences=*/0));
  EDDY_ASSIGN_OR_RETURN(std::optional<RecordField> field, parts_.records.FirstNotFinite(slot));
  EDDY_ASSIGN_OR_RETURN(
      std::optional<RecordField> in_pages,
      parts_.kv.FirstNotFinite(sequence.pages->pages(), sequence.position() + entry.rows));
  // The earliest layer is the one in which it began.
  if (!field || (in_pages && in_pages->layer < field->layer)) field = std::move(in_pages);
  NotFinite found = {.position = position};
  if (field) {
    found.layer = field->layer;
    found.field = field->name;
  }
  return found;
}

}  // namespace eddy
