// An executor without a model: what it generates is the prompt behind its first token, over and
// over. So a test writes down in the prompt what the model shall say.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "engine/executor.h"
#include "engine/sequence.h"

namespace eddy {

// What a test holds of an executor that the engine owns. Thread-safe.
class EchoControl {
 public:
  // Steps wait from the next one on, until Open or Allow.
  void Close() ABSL_LOCKS_EXCLUDED(mu_) { SetAllowed(0); }
  void Open() ABSL_LOCKS_EXCLUDED(mu_) { SetAllowed(-1); }
  void Allow(int steps) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (allowed_ >= 0) allowed_ += steps;
    changed_.NotifyAll();
  }
  // Until a step waits at the closed gate.
  void AwaitBlocked() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    while (!blocked_) changed_.Wait(&mu_);
  }
  // The next step fails.
  void Break() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    broken_ = true;
  }
  // A sequence whose prompt has this token loses its numbers at its first step; negative: none.
  void Poison(int32_t token) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    poison_ = token;
  }

  // The executor's side. False: fail.
  bool EnterStep() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    while (allowed_ == 0) {
      blocked_ = true;
      changed_.NotifyAll();
      changed_.Wait(&mu_);
    }
    blocked_ = false;
    if (allowed_ > 0) --allowed_;
    return !broken_;
  }
  int32_t poison() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return poison_;
  }

 private:
  void SetAllowed(int steps) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    allowed_ = steps;
    changed_.NotifyAll();
  }

  mutable Mutex mu_;
  CondVar changed_;
  int allowed_ ABSL_GUARDED_BY(mu_) = -1;  // steps; negative: any number
  bool blocked_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  int32_t poison_ ABSL_GUARDED_BY(mu_) = -1;
};

class EchoExecutor : public Executor {
 public:
  explicit EchoExecutor(EchoControl* control) : control_(control) {}

  // What the model thinks of `token`: a function of the token alone.
  static TokenReport Report(int32_t token, int top) {
    TokenReport report{
        .token = token, .logprob = LogprobOf(token), .rank = 1 + token % 3, .entropy = 0.25f};
    for (int32_t i = 0; i < top; ++i) report.top.push_back({i, LogprobOf(i)});
    return report;
  }
  static float LogprobOf(int32_t token) { return -0.125f * static_cast<float>(1 + token % 8); }

  absl::StatusOr<StepResult> Run(const BatchPlan& plan) override {
    if (!control_->EnterStep()) return absl::InternalError("the gate is broken");
    StepResult result;
    for (const BatchPlan::Entry& entry : plan.entries) {
      result.entries.push_back(RunEntry(entry, control_->poison()));
    }
    for (const Sequence* sequence : plan.saves) {
      Saved saved;
      if (sequence->request.report.state_stats) {
        saved.stats = {{.layer_type = "echo", .field = "s", .elements = 3, .max = 2}};
      }
      result.saved.push_back(std::move(saved));
    }
    return result;
  }

 private:
  static EntryResult RunEntry(const BatchPlan::Entry& entry, int32_t poison) {
    const Sequence& sequence = *entry.sequence;
    const Request& request = sequence.request;
    EntryResult result;
    for (const int32_t token : request.prompt) {
      if (token != poison) continue;
      result.not_finite = NotFinite{.layer = 3, .field = "s", .position = sequence.position()};
      return result;
    }
    const Sequence::Range scored = sequence.scored_by(entry.rows);
    for (int i = scored.begin; i < scored.end; ++i) {
      result.scored.push_back(Report(sequence.tokens[static_cast<size_t>(i)], request.report.top));
    }
    if (entry.samples) {
      const size_t length = request.prompt.size() - 1;
      const auto next = static_cast<size_t>(sequence.generated);
      const int32_t token = length == 0 ? request.prompt[0] : request.prompt[1 + next % length];
      result.sampled = Report(token, request.report.logprobs ? request.report.top : 0);
      if (request.report.uncertainty) result.sampled->delta = DeltaReport{.residual = 0.5f};
    }
    if (entry.last) {
      for (const int32_t token : request.report.next_tokens) {
        result.next.push_back(LogprobOf(token));
      }
      for (int32_t i = 0; i < request.report.top; ++i) {
        result.next_top.push_back({i, LogprobOf(i)});
      }
    }
    return result;
  }

  EchoControl* const control_;
};

}  // namespace eddy
