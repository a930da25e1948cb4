// The checks of a call that only its prompt's tokens decide.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/call.h"
#include "server/errors.h"
#include "server/output.h"
#include "server/served_model.h"

namespace eddy {

// The name of the field that holds the prompt.
inline const char* PromptField(const CallPlan& plan) {
  return plan.text.has_value() ? "text" : "token_ids";
}

// Adds what is wrong with a prompt of so many tokens: empty, too long, more positions or pages than
// there are, more logprob entries than an answer may have, a first_token behind its end.
void CheckPrompt(const ServedModel& model, const CallPlan& plan, int64_t prompt_tokens,
                 Faults* faults);

// Encodes the prompt's text, if it is text, checks and cuts it, and completes `plan->request`. May
// take milliseconds; a text that cannot but have too many tokens is refused at once.
std::optional<Error> EncodePrompt(const ServedModel& model, CallPlan* plan, PromptFacts* facts);

}  // namespace eddy
