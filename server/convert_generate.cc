#include "server/convert_generate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/checks.h"
#include "server/features.h"
#include "server/ids.h"
#include "server/prompt.h"

namespace eddy {
namespace {

constexpr int kTopLogprobsMost = 20;
constexpr int kPriorityMost = 100;

std::vector<int32_t> ToIds(const google::protobuf::RepeatedField<uint32_t>& ids) {
  return {ids.begin(), ids.end()};
}

std::optional<Error> CheckFeatures(std::vector<std::string_view> missing) {
  if (missing.empty()) return std::nullopt;
  std::string names;
  for (const std::string_view name : missing) {
    if (!names.empty()) names += ",";
    names += name;
  }
  return FeatureDisabled(names);
}

std::vector<std::string_view> MissingFeatures(const v1::GenerateRequest& request,
                                              const ServedModel& model) {
  std::vector<std::string_view> missing;
  auto need = [&](bool wanted, std::string_view feature) {
    if (wanted) missing.push_back(feature);
  };
  const v1::SessionOptions& session = request.session();
  need(session.has_start() || session.keep() || !session.keep_session_id().empty() ||
           session.has_ttl(),
       kFeatureSessions);
  need(request.prefix_cache().store_at_size() > 0, kFeaturePrefixCache);
  need(request.sampling().num_sequences() > kMaxNumSequences, kFeatureNumSequences);
  switch (request.decoding().constraint_case()) {
    case v1::DecodingOptions::kJsonSchema:
      need(true, kFeatureJsonSchema);
      break;
    case v1::DecodingOptions::kRegex:
      need(true, kFeatureRegex);
      break;
    case v1::DecodingOptions::kChoices:
      need(true, kFeatureChoices);
      break;
    case v1::DecodingOptions::kGrammar:
      need(true, kFeatureGrammar);
      break;
    case v1::DecodingOptions::kJsonObject:
      need(request.decoding().json_object(), kFeatureJsonObject);
      break;
    case v1::DecodingOptions::CONSTRAINT_NOT_SET:
      break;
  }
  need(request.response().state_stats() && model.info.record_bytes == 0, kFeatureStateStats);
  return missing;
}

// What is common to Generate and Score. `kept` must already hold what CheckPrompt looks at.
template <typename Request>
void ReadPrompt(const Request& request, const ServedModel& model, Faults* faults, CallPlan* plan) {
  plan->encode = {.add_bos = !request.encode().omit_bos(),
                  .literal_special_tokens = request.encode().literal_special_tokens()};
  plan->request.priority = request.priority();
  CheckInteger("priority", request.priority(), -kPriorityMost, kPriorityMost, faults);
  switch (request.prompt_case()) {
    case Request::kText:
      plan->text = request.text();
      CheckText("text", request.text(), faults);
      if (request.text().empty()) {
        CheckPrompt(model, *plan, 0, faults);
      } else if (model.tokenizer == nullptr) {
        faults->Add("NO_TOKENIZER", "text", "text: the model has no tokenizer, send token_ids", {});
      }
      return;
    case Request::kTokenIds: {
      const auto& ids = request.token_ids().ids();
      CheckTokenIds("token_ids.ids", ids, model.info.vocab_size, faults);
      CheckPrompt(model, *plan, ids.size(), faults);
      plan->request.prompt = ToIds(ids);
      return;
    }
    case Request::PROMPT_NOT_SET:
      faults->Add("PROMPT_EMPTY", "prompt", "prompt: neither text nor token_ids is set", {});
  }
}

void SetTimes(const ServedModel& model, const CallTimes& times, CallPlan* plan) {
  plan->request.arrival = times.arrival;
  const absl::Time latest = times.arrival + model.limits.max_request_time;
  plan->client_deadline = times.client_deadline <= latest;
  plan->request.deadline = std::min(times.client_deadline, latest);
}

void ReadSampling(const v1::SamplingOptions& from, const ServedModel& model, Faults* faults,
                  SamplingParams* to) {
  if (from.has_temperature()) {
    CheckFloat("sampling.temperature", from.temperature(), {.least = 0, .most = 10}, faults);
    to->temperature = from.temperature();
  }
  if (from.has_top_p()) {
    CheckFloat("sampling.top_p", from.top_p(), {.least = 0, .most = 1, .open_least = true}, faults);
    to->top_p = from.top_p();
  }
  CheckInteger("sampling.top_k", from.top_k(), 0, model.info.vocab_size, faults);
  to->top_k = static_cast<int32_t>(from.top_k());
  CheckFloat("sampling.min_p", from.min_p(), {.least = 0, .most = 1, .open_most = true}, faults);
  to->min_p = from.min_p();
  if (from.has_typical_p()) {
    CheckFloat("sampling.typical_p", from.typical_p(), {.least = 0, .most = 1, .open_least = true},
               faults);
    to->typical_p = from.typical_p();
  }
  to->seed = from.has_seed() ? from.seed() : RandomSeed();
}

void ReadLogitBias(const v1::DecodingOptions& from, const ServedModel& model, Faults* faults,
                   SamplingParams* to) {
  CheckCount("decoding.logit_bias", static_cast<int64_t>(from.logit_bias_size()), 1024, faults);
  for (const auto& [id, bias] : from.logit_bias()) to->logit_bias.emplace_back(id, bias);
  std::sort(to->logit_bias.begin(), to->logit_bias.end());
  int wrong = 0;
  for (const auto& [id, bias] : to->logit_bias) {
    Faults found;
    const std::string field = absl::StrCat("decoding.logit_bias[", static_cast<uint32_t>(id), "]");
    if (static_cast<uint32_t>(id) >= model.info.vocab_size) {
      found.Add(field,
                absl::StrCat(field, ": the vocabulary has ", model.info.vocab_size, " tokens"));
    }
    CheckFloat(field.c_str(), bias, {.least = -100, .most = 100}, &found);
    if (!found.empty() && ++wrong <= Faults::kDescribedPerList) faults->Add(found);
  }
  if (wrong > Faults::kDescribedPerList) {
    faults->Add("decoding.logit_bias",
                absl::StrCat("decoding.logit_bias: ", wrong - Faults::kDescribedPerList,
                             " more entries are wrong"));
  }
}

void ReadDecoding(const v1::DecodingOptions& from, const ServedModel& model, Faults* faults,
                  SamplingParams* to) {
  constexpr int kIdsMost = 65536;
  if (from.repetition_penalty() != 0) {
    CheckFloat("decoding.repetition_penalty", from.repetition_penalty(), {.least = 0.1, .most = 10},
               faults);
    to->repetition_penalty = from.repetition_penalty();
  }
  CheckFloat("decoding.frequency_penalty", from.frequency_penalty(), {.least = -2, .most = 2},
             faults);
  to->frequency_penalty = from.frequency_penalty();
  CheckFloat("decoding.presence_penalty", from.presence_penalty(), {.least = -2, .most = 2},
             faults);
  to->presence_penalty = from.presence_penalty();
  ReadLogitBias(from, model, faults, to);
  CheckCount("decoding.allowed_token_ids", from.allowed_token_ids_size(), kIdsMost, faults);
  CheckTokenIds("decoding.allowed_token_ids", from.allowed_token_ids(), model.info.vocab_size,
                faults);
  to->allowed = ToIds(from.allowed_token_ids());
  CheckCount("decoding.banned_token_ids", from.banned_token_ids_size(), kIdsMost, faults);
  CheckTokenIds("decoding.banned_token_ids", from.banned_token_ids(), model.info.vocab_size,
                faults);
  to->banned = ToIds(from.banned_token_ids());
}

void ReadStopStrings(const v1::StoppingOptions& from, const ServedModel& model, Faults* faults,
                     CallPlan* plan) {
  CheckCount("stopping.stop_strings", from.stop_strings_size(), 16, faults);
  for (int i = 0; i < std::min(from.stop_strings_size(), 16); ++i) {
    const std::string field = absl::StrCat("stopping.stop_strings[", i, "]");
    const std::string& text = from.stop_strings(i);
    if (text.empty() || text.size() > 256) {
      faults->Add(field, absl::StrCat(field, " has ", text.size(), " bytes; it must be 1 to 256"));
    }
    CheckText(field.c_str(), text, faults);
    plan->stop_strings.push_back(text);
  }
  if (from.stop_strings_size() > 0 && model.tokenizer == nullptr) {
    faults->Add("NO_TOKENIZER", "stopping.stop_strings",
                "stopping.stop_strings: the model has no tokenizer, send stop_token_ids", {});
  }
  plan->include_stop_string = from.include_stop_string();
}

void ReadStopping(const v1::StoppingOptions& from, const ServedModel& model, Faults* faults,
                  CallPlan* plan) {
  Request& request = plan->request;
  const int64_t most = model.limits.max_new_tokens;
  CheckInteger("stopping.max_new_tokens", from.max_new_tokens(), 0, most, faults);
  const int64_t wanted = from.max_new_tokens() == 0 ? model.limits.default_max_new_tokens
                                                    : static_cast<int64_t>(from.max_new_tokens());
  request.max_new_tokens = static_cast<int>(std::min(wanted, most));
  CheckInteger("stopping.min_new_tokens", from.min_new_tokens(), 0, request.max_new_tokens, faults);
  request.sampling.min_new_tokens = static_cast<int32_t>(from.min_new_tokens());
  ReadStopStrings(from, model, faults, plan);
  CheckCount("stopping.stop_token_ids", from.stop_token_ids_size(), 64, faults);
  CheckTokenIds("stopping.stop_token_ids", from.stop_token_ids(), model.info.vocab_size, faults);
  request.stop_tokens = ToIds(from.stop_token_ids());
  if (!from.ignore_eos()) request.eos_tokens = model.info.eos_tokens;
  request.sampling.ending_tokens = request.eos_tokens;
  request.sampling.ending_tokens.insert(request.sampling.ending_tokens.end(),
                                        request.stop_tokens.begin(), request.stop_tokens.end());
  if (from.has_time_limit()) {
    const std::optional<absl::Duration> limit =
        CheckDuration("stopping.time_limit", from.time_limit(), absl::Milliseconds(1),
                      model.limits.max_request_time, faults);
    if (limit.has_value()) request.time_limit = request.arrival + *limit;
  }
}

void ReadResponse(const v1::GenerateRequest& request, const ServedModel& model, Faults* faults,
                  PlannedCall* call) {
  const v1::ResponseOptions& from = request.response();
  CallPlan& plan = call->plan;
  CheckInteger("response.top_logprobs", from.top_logprobs(), 0, kTopLogprobsMost, faults);
  if (from.top_logprobs() > 0 && !from.logprobs() && !from.prompt_logprobs()) {
    faults->Add("response.top_logprobs",
                absl::StrCat("response.top_logprobs is ", from.top_logprobs(),
                             "; it needs response.logprobs or response.prompt_logprobs"));
  }
  if (from.omit_text() && request.stopping().stop_strings_size() > 0) {
    faults->Add("response.omit_text",
                "response.omit_text is true; stopping.stop_strings need the text");
  }
  if (from.prompt_text() && !plan.text.has_value() && model.tokenizer == nullptr) {
    faults->Add("NO_TOKENIZER", "response.prompt_text",
                "response.prompt_text: the model has no tokenizer", {});
  }
  plan.request.report = {.logprobs = from.logprobs(),
                         .top = static_cast<int>(from.top_logprobs()),
                         .first_scored = from.prompt_logprobs() ? 0 : -1,
                         .uncertainty = from.uncertainty(),
                         .state_stats = from.state_stats()};
  plan.wants_text = !from.omit_text() && model.tokenizer != nullptr;
  plan.special_tokens = from.special_tokens();
  plan.wants_tokens = from.token_ids() || from.logprobs() || from.uncertainty();
  plan.wants_prompt_text = from.prompt_text();
  plan.wants_prompt_ids = from.prompt_token_ids();
  call->shape.token_ids = from.token_ids();
  call->shape.logprobs = from.logprobs();
  call->shape.uncertainty = from.uncertainty();
  call->shape.timings = from.timings();
  call->shape.first_scored = plan.request.report.first_scored;
}

// At least one token must be left to draw, also while the ending ones are barred.
// The engine must find a token to draw at every step, above all below min_new_tokens.
void CheckSomethingIsAllowed(const SamplingParams& sampling, int64_t vocab_size, Faults* faults) {
  std::vector<int32_t> barred = sampling.banned;
  if (sampling.min_new_tokens > 0) {
    barred.insert(barred.end(), sampling.ending_tokens.begin(), sampling.ending_tokens.end());
  }
  std::sort(barred.begin(), barred.end());
  barred.erase(std::unique(barred.begin(), barred.end()), barred.end());
  const auto is_barred = [&](int32_t id) {
    return std::binary_search(barred.begin(), barred.end(), id);
  };
  constexpr std::string_view kWhy =
      " may be drawn, since all are in banned_token_ids or end the sequence before min_new_tokens";
  if (sampling.allowed.empty()) {
    if (static_cast<int64_t>(barred.size()) < vocab_size) return;
    faults->Add("decoding.banned_token_ids", absl::StrCat("decoding.banned_token_ids: none of the ",
                                                          vocab_size, " ids", std::string(kWhy)));
  } else if (std::all_of(sampling.allowed.begin(), sampling.allowed.end(), is_barred)) {
    faults->Add("decoding.allowed_token_ids",
                absl::StrCat("decoding.allowed_token_ids: none of the ", sampling.allowed.size(),
                             " ids", std::string(kWhy)));
  }
}

}  // namespace

std::optional<Error> CheckModel(const std::string& name, const ServedModel& model) {
  if (name.empty() || name == model.name) return std::nullopt;
  return ModelNotFound(name, model.name);
}

std::optional<Error> ReadGenerateRequest(const v1::GenerateRequest& request,
                                         const ServedModel& model, const CallTimes& times,
                                         Faults faults, PlannedCall* call) {
  if (std::optional<Error> error = CheckModel(request.model(), model)) return error;
  if (std::optional<Error> error = CheckFeatures(MissingFeatures(request, model))) return error;
  CallPlan& plan = call->plan;
  SetTimes(model, times, &plan);
  ReadSampling(request.sampling(), model, &faults, &plan.request.sampling);
  ReadDecoding(request.decoding(), model, &faults, &plan.request.sampling);
  ReadStopping(request.stopping(), model, &faults, &plan);
  CheckSomethingIsAllowed(plan.request.sampling, model.info.vocab_size, &faults);
  CheckInteger("truncate_prompt_tokens", request.truncate_prompt_tokens(), 0,
               model.limits.max_prompt_tokens, &faults);
  plan.truncate_to = static_cast<int>(
      std::min<int64_t>(request.truncate_prompt_tokens(), model.limits.max_prompt_tokens));
  if (request.has_text()) plan.text = request.text();
  ReadResponse(request, model, &faults, call);
  ReadPrompt(request, model, &faults, &plan);
  if (!faults.empty()) return faults.ToError();
  call->shape.model = &model;
  call->shape.seed = plan.request.sampling.seed;
  return std::nullopt;
}

std::optional<Error> ReadScoreRequest(const v1::ScoreRequest& request, const ServedModel& model,
                                      const CallTimes& times, Faults faults, PlannedCall* call) {
  if (std::optional<Error> error = CheckModel(request.model(), model)) return error;
  std::vector<std::string_view> missing;
  if (request.has_start()) missing.push_back(kFeatureSessions);
  if (request.prefix_cache().store_at_size() > 0) missing.push_back(kFeaturePrefixCache);
  if (std::optional<Error> error = CheckFeatures(std::move(missing))) return error;
  CallPlan& plan = call->plan;
  SetTimes(model, times, &plan);
  CheckInteger("top_logprobs", request.top_logprobs(), 0, kTopLogprobsMost, &faults);
  CheckInteger("first_token", request.first_token(), 0, model.limits.max_prompt_tokens, &faults);
  CheckCount("next_token_ids", request.next_token_ids_size(), 256, &faults);
  CheckTokenIds("next_token_ids", request.next_token_ids(), model.info.vocab_size, &faults);
  const int64_t first = std::min<int64_t>(request.first_token(), model.limits.max_prompt_tokens);
  plan.request.report = {.top = static_cast<int>(request.top_logprobs()),
                         .first_scored = static_cast<int>(first),
                         .next_tokens = ToIds(request.next_token_ids()),
                         .uncertainty = request.uncertainty()};
  ReadPrompt(request, model, &faults, &plan);
  if (!faults.empty()) return faults.ToError();
  call->shape = {.model = &model,
                 .uncertainty = request.uncertainty(),
                 .timings = true,
                 .first_scored = plan.request.report.first_scored,
                 .next_tokens = plan.request.report.next_tokens};
  return std::nullopt;
}

}  // namespace eddy
