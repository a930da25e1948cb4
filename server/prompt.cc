#include "server/prompt.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eddy {
namespace {

// As many tokens of the prompt as will be read.
int64_t KeptTokens(const CallPlan& plan, int64_t prompt_tokens) {
  return plan.truncate_to > 0 ? std::min<int64_t>(prompt_tokens, plan.truncate_to) : prompt_tokens;
}

void CheckFits(const ServedModel& model, const CallPlan& plan, int64_t kept, Faults* faults) {
  const int64_t rows = kept + plan.request.max_new_tokens;
  auto never = [&](int64_t needed, int64_t total, const char* what) {
    faults->Add("NEVER_FITS", PromptField(plan),
                absl::StrCat("the prompt's ", kept, " tokens and max_new_tokens ",
                             plan.request.max_new_tokens, " need ", needed, " ", what,
                             ", there are ", total),
                {{"needed", absl::StrCat(needed)}, {"total", absl::StrCat(total)}});
  };
  if (model.info.max_positions > 0 && rows > model.info.max_positions) {
    never(rows, model.info.max_positions, "positions");
  } else if (const int64_t pages = model.capacity.page_sizes().PagesFor(rows);
             pages > model.capacity.pages) {
    never(pages, model.capacity.pages, "pages");
  }
}

void CheckEntries(const ServedModel& model, const CallPlan& plan, int64_t kept, Faults* faults) {
  const ReportOptions& report = plan.request.report;
  int64_t reported = report.logprobs ? plan.request.max_new_tokens : 0;
  if (report.first_scored >= 0) reported += kept - report.first_scored;
  int64_t entries = reported * (1 + report.top);
  // A TokenUncertainty takes about as much room as an entry.
  if (report.uncertainty) {
    const bool generates = plan.request.max_new_tokens > 0;
    entries += generates ? plan.request.max_new_tokens : reported;
  }
  if (entries > model.limits.max_logprob_entries) {
    faults->Add(plan.request.max_new_tokens == 0 ? "first_token" : "response",
                absl::StrCat("the answer would hold ", entries,
                             " log-probabilities, the limit max_logprob_entries is ",
                             model.limits.max_logprob_entries));
  }
}

void AddTooLong(const ServedModel& model, const CallPlan& plan, int64_t tokens, bool at_least,
                Faults* faults) {
  const char* const field = PromptField(plan);
  const std::string limit = absl::StrCat(model.limits.max_prompt_tokens);
  faults->Add("PROMPT_TOO_LONG", field,
              absl::StrCat(field, ": the prompt has ", at_least ? "at least " : "", tokens,
                           " tokens, the limit is ", limit),
              {{at_least ? "prompt_tokens_at_least" : "prompt_tokens", absl::StrCat(tokens)},
               {"limit", limit}});
}

// Encoding takes time in proportion, which a text that is too long by far does not get.
void CheckText(const ServedModel& model, const CallPlan& plan, Faults* faults) {
  if (plan.truncate_to > 0) return;
  const auto tokens = static_cast<int64_t>(model.tokenizer->FewestTokens(*plan.text));
  if (tokens <= model.limits.max_prompt_tokens) return;
  AddTooLong(model, plan, tokens, /*at_least=*/true, faults);
}

}  // namespace

void CheckPrompt(const ServedModel& model, const CallPlan& plan, int64_t prompt_tokens,
                 Faults* faults) {
  const char* const field = PromptField(plan);
  if (prompt_tokens == 0) {
    faults->Add("PROMPT_EMPTY", field, absl::StrCat(field, ": the prompt is empty"), {});
    return;
  }
  const int64_t kept = KeptTokens(plan, prompt_tokens);
  if (kept > model.limits.max_prompt_tokens) {
    return AddTooLong(model, plan, kept, /*at_least=*/false, faults);
  }
  if (plan.request.report.first_scored > kept) {
    faults->Add("first_token", absl::StrCat("first_token is ", plan.request.report.first_scored,
                                            ", the prompt has ", kept, " tokens"));
    return;
  }
  CheckFits(model, plan, kept, faults);
  CheckEntries(model, plan, kept, faults);
}

std::optional<Error> EncodePrompt(const ServedModel& model, CallPlan* plan, PromptFacts* facts) {
  std::vector<int32_t>& tokens = plan->request.prompt;
  Faults faults;
  if (plan->text.has_value()) {
    CheckText(model, *plan, &faults);
    if (!faults.empty()) return faults.ToError();
    absl::StatusOr<std::vector<int32_t>> encoded =
        model.tokenizer->Encode(*plan->text, plan->encode);
    if (!encoded.ok()) {
      faults.Add("text", absl::StrCat("text: ", encoded.status().message()));
      return faults.ToError();
    }
    tokens = *std::move(encoded);
  }
  CheckPrompt(model, *plan, static_cast<int64_t>(tokens.size()), &faults);
  if (!faults.empty()) return faults.ToError();
  const int64_t kept = KeptTokens(*plan, static_cast<int64_t>(tokens.size()));
  facts->truncated_tokens = static_cast<int>(static_cast<int64_t>(tokens.size()) - kept);
  tokens.erase(tokens.begin(), tokens.begin() + facts->truncated_tokens);
  facts->prompt_tokens = static_cast<int>(kept);
  facts->first_token = tokens.front();
  if (plan->wants_prompt_ids) facts->ids = tokens;
  if (plan->wants_prompt_text) {
    const bool whole = plan->text.has_value() && facts->truncated_tokens == 0;
    facts->text = whole ? *plan->text : model.tokenizer->Decode(tokens, /*special_tokens=*/true);
  }
  plan->text.reset();
  return std::nullopt;
}

}  // namespace eddy
