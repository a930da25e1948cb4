// Real models run by the real scheduler and executor, without threads: for tests of what comes out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/load.h"
#include "engine/scheduler.h"
#include "tests/engine/model_files.h"

namespace eddy {

// What became of a request.
struct Answer {
  std::vector<TokenReport> scored = {};
  std::vector<TokenReport> tokens = {};
  std::vector<float> next = {};
  std::vector<Candidate> next_top = {};
  End end = {};
  // Steps of Run, counted from 1: the one that admitted it, and the one in which it ended.
  int admitted = 0, ended = 0;
  std::vector<int32_t> ids() const {
    std::vector<int32_t> all;
    for (const TokenReport& report : tokens) all.push_back(report.token);
    return all;
  }
};

// A loaded model, with as many slots and rows per step as are asked for.
class ModelRunner {
 public:
  struct Size {
    int slots = 4;
    int rows = 64;
    int pages = 0;  // of those that there are, so many are used; 0: all
    int rows_per_page = 16;
  };
  // `device` outlives it.
  ModelRunner(const std::string& model_dir, Size size, Device* device) {
    auto loaded = LoadModel({.model_dir = model_dir,
                             .max_sequences = size.slots,
                             .max_rows_per_step = size.rows,
                             .kv_page_tokens = size.rows_per_page},
                            device);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) std::abort();
    loaded_ = *std::move(loaded);
    EXPECT_EQ(loaded_.capacity.slots, size.slots);
    slots_ = std::make_unique<StatePool>(size.slots);
    PageSizes sizes = loaded_.capacity.page_sizes();
    EXPECT_LE(size.pages, sizes.pages);
    if (size.pages > 0) sizes.pages = size.pages;
    pages_ = std::make_unique<PagePool>(sizes);
    scheduler_ = std::make_unique<Scheduler>(Scheduler::Limits{.max_rows_per_step = size.rows},
                                             slots_.get(), pages_.get());
  }

  // Runs all of them at once, in this order in the line; request i becomes answer i.
  std::vector<Answer> Run(std::vector<Request> requests) {
    std::vector<Answer> answers(requests.size());
    std::map<RequestId, size_t> index;
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].id = next_id_++;
      index[requests[i].id] = i;
      scheduler_->Add(std::move(requests[i]));
    }
    for (int step = 1; !scheduler_->idle(); ++step) {
      BatchPlan plan = scheduler_->Plan(absl::UnixEpoch());
      if (change_plan_) change_plan_(&plan);
      for (const Sequence* sequence : plan.fills) {
        answers[index.at(sequence->request.id)].admitted = step;
      }
      StepResult result;
      most_running_ = std::max(most_running_, scheduler_->running());
      if (!plan.empty()) {
        auto run = loaded_.executor->Run(plan);
        EXPECT_TRUE(run.ok()) << run.status();
        result = *std::move(run);
        recorded_steps_ += result.recorded ? 1 : 0;
      }
      for (Event& event : scheduler_->Commit(plan, std::move(result), absl::UnixEpoch())) {
        Answer& answer = answers[index.at(event.id)];
        Note(std::move(event), step, &answer);
      }
    }
    EXPECT_EQ(slots_->free_slots(), slots_->slots());
    EXPECT_EQ(pages_->free_pages(), pages_->pages());
    return answers;
  }
  Answer Run(Request request) {
    std::vector<Request> one;
    one.push_back(std::move(request));
    return std::move(Run(std::move(one))[0]);
  }

  const ModelInfo& info() const { return loaded_.info; }
  const Capacity& capacity() const { return loaded_.capacity; }
  // Called with every plan before it runs.
  void ChangePlans(std::function<void(BatchPlan*)> change) { change_plan_ = std::move(change); }
  // The most sequences that had a slot and their pages at once.
  int most_running() const { return most_running_; }
  // Steps that said that they ran from a record.
  int recorded_steps() const { return recorded_steps_; }

 private:
  static void Note(Event event, int step, Answer* answer) {
    for (TokenReport& report : event.scored) answer->scored.push_back(std::move(report));
    if (event.token) answer->tokens.push_back(std::move(*event.token));
    if (!event.next.empty()) answer->next = std::move(event.next);
    if (!event.next_top.empty()) answer->next_top = std::move(event.next_top);
    if (!event.end) return;
    answer->end = std::move(*event.end);
    answer->ended = step;
  }

  LoadedModel loaded_;
  std::unique_ptr<PagePool> pages_;
  std::unique_ptr<StatePool> slots_;
  std::unique_ptr<Scheduler> scheduler_;
  std::function<void(BatchPlan*)> change_plan_;
  RequestId next_id_ = 1;
  int most_running_ = 0, recorded_steps_ = 0;
};

inline Request Score(std::vector<int32_t> prompt, int top = 1) {
  return {.prompt = std::move(prompt), .report = {.top = top, .first_scored = 0}};
}

inline Request Greedy(std::vector<int32_t> prompt, int max_new_tokens) {
  return {.prompt = std::move(prompt),
          .max_new_tokens = max_new_tokens,
          .sampling = {.temperature = 0},
          .report = {.logprobs = true}};
}

// What a golden set holds: inputs, and what other programs made of them.
struct GoldenSet {
  std::string dir;
  std::vector<std::vector<int32_t>> input_ids = {};  // [rows][257]
  std::vector<std::vector<int32_t>> continuation = {};
  std::vector<std::vector<std::vector<double>>> logprobs = {};  // [rows][position][vocab]
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> states = {};
  bool found = false;
};

inline std::vector<std::vector<int32_t>> IntRows(const TestTensor& tensor) {
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(tensor.shape[0]));
  const auto width = static_cast<size_t>(tensor.shape[1]);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].resize(width);
    std::memcpy(rows[i].data(), tensor.data.data() + i * width * 4, width * 4);
  }
  return rows;
}

inline std::vector<float> Floats(const TestTensor& tensor) {
  std::vector<float> values(tensor.data.size() / 4);
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

inline std::vector<double> LogSoftmax(const float* logits, size_t n) {
  double max = -INFINITY, sum = 0;
  for (size_t i = 0; i < n; ++i) max = std::max(max, static_cast<double>(logits[i]));
  for (size_t i = 0; i < n; ++i) sum += std::exp(logits[i] - max);
  std::vector<double> all(n);
  for (size_t i = 0; i < n; ++i) all[i] = logits[i] - max - std::log(sum);
  return all;
}

// Looks in the tree, then beside it.
inline GoldenSet ReadGoldenSet(const std::string& name) {
  GoldenSet set = {.dir = "tests/golden/" + name};
  if (!std::filesystem::exists(set.dir)) set.dir = "../shared/golden/" + name;
  set.found = std::filesystem::exists(set.dir);
  if (!set.found) return set;
  for (const TestTensor& tensor : ReadTensors(set.dir + "/golden.safetensors")) {
    if (tensor.name == "input_ids") set.input_ids = IntRows(tensor);
    if (tensor.name == "greedy_continuation") set.continuation = IntRows(tensor);
    if (tensor.name.rfind("state_after_65", 0) == 0) {
      set.states[tensor.name] = {tensor.shape, Floats(tensor)};
    }
    if (tensor.name != "logits") continue;
    const std::vector<float> logits = Floats(tensor);
    const auto vocab = static_cast<size_t>(tensor.shape[2]);
    set.logprobs.resize(static_cast<size_t>(tensor.shape[0]));
    for (size_t at = 0; at < logits.size(); at += vocab) {
      set.logprobs[at / vocab / static_cast<size_t>(tensor.shape[1])].push_back(
          LogSoftmax(logits.data() + at, vocab));
    }
  }
  return set;
}

}  // namespace eddy
