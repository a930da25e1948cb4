// A scheduler with its pools, and one who answers its plans by hand: for tests of a few steps.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/scheduler.h"

namespace eddy {

inline absl::Time At(int64_t ms) { return absl::FromUnixMillis(ms); }

class Desk {
 public:
  struct Options {
    int slots = 2;
    int max_rows = 8;
    int pages = 0;
    int rows_per_page = 0;
  };
  explicit Desk(Options options)
      : slots(options.slots),
        pages(options.pages, options.rows_per_page),
        scheduler({.max_rows_per_step = options.max_rows}, &slots, &pages) {}

  // A request with a prompt of `prompt` tokens and at most `answer` new ones.
  static Request Ask(RequestId id, int prompt, int answer) {
    Request request{.id = id};
    request.prompt.assign(static_cast<size_t>(prompt), 9);
    request.max_new_tokens = answer;
    request.arrival = At(0);
    return request;
  }
  // What the plan does, as id and rows.
  static std::vector<std::pair<RequestId, int>> Rows(const BatchPlan& plan) {
    std::vector<std::pair<RequestId, int>> rows;
    for (const auto& entry : plan.entries) {
      rows.emplace_back(entry.sequence->request.id, entry.rows);
    }
    return rows;
  }
  // A well-formed result; every sampled token is `token`.
  static StepResult Result(const BatchPlan& plan, int32_t token) {
    StepResult result;
    for (const Sequence* sequence : plan.saves) {
      Checkpoint checkpoint{.position = sequence->position()};
      checkpoint.unfed.assign(sequence->tokens.begin() + sequence->consumed,
                              sequence->tokens.end());
      Saved saved;
      if (sequence->request.keep_state) saved.state = std::make_shared<Checkpoint>(checkpoint);
      if (sequence->request.report.state_stats) saved.stats = {{.field = "s", .elements = 7}};
      result.saved.push_back(std::move(saved));
    }
    for (const BatchPlan::Entry& entry : plan.entries) {
      EntryResult one;
      one.scored.resize(static_cast<size_t>(entry.sequence->scored_by(entry.rows).size()));
      if (entry.samples) one.sampled = TokenReport{.token = token};
      if (entry.last) one.next.resize(entry.sequence->request.report.next_tokens.size());
      result.entries.push_back(std::move(one));
    }
    return result;
  }
  // A whole step; remembers the events and returns the rows.
  std::vector<std::pair<RequestId, int>> Step(int64_t ms, int32_t token = 1) {
    const BatchPlan plan = scheduler.Plan(At(ms));
    auto rows = Rows(plan);
    Hear(scheduler.Commit(plan, Result(plan, token), At(ms)));
    return rows;
  }
  void Hear(std::vector<Event> events) {
    for (Event& event : events) {
      EXPECT_FALSE(ends.contains(event.id)) << "two ends, or something after it";
      if (event.token) ++tokens[event.id];
      if (event.end) ends[event.id] = *event.end;
    }
  }

  StatePool slots;
  PagePool pages;
  Scheduler scheduler;
  std::map<RequestId, int> tokens;
  std::map<RequestId, End> ends;
};

}  // namespace eddy
