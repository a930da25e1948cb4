#include "server/call.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace eddy {
namespace {

FinishReason ReasonOf(EndReason reason) {
  switch (reason) {
    case EndReason::kEos:
      return FinishReason::kEos;
    case EndReason::kStopToken:
      return FinishReason::kStopToken;
    case EndReason::kTimeLimit:
      return FinishReason::kTimeLimit;
    case EndReason::kLength:
    case EndReason::kCut:  // after a stop string was found; the caller says so
      return FinishReason::kLength;
  }
  return FinishReason::kLength;
}

}  // namespace

Call::Call(const CallPlan& plan, PromptFacts facts, const Tokenizer* tokenizer)
    : arrival_(plan.request.arrival),
      wants_tokens_(plan.wants_tokens),
      min_new_tokens_(plan.request.sampling.min_new_tokens),
      prompt_tokens_(facts.prompt_tokens),
      stop_strings_(plan.stop_strings),
      ending_tokens_(plan.request.sampling.ending_tokens),
      facts_(std::make_unique<PromptFacts>(std::move(facts))) {
  if (plan.wants_text) {
    EDDY_CHECK(tokenizer != nullptr);
    decoder_ = tokenizer->NewDecoder(plan.special_tokens);
    if (!stop_strings_.empty()) matcher_.emplace(stop_strings_, plan.include_stop_string);
  }
}

Output Call::Take(Event* event) {
  std::move(event->scored.begin(), event->scored.end(), std::back_inserter(scored_));
  if (!event->next.empty()) next_ = std::move(event->next);
  if (!event->next_top.empty()) next_top_ = std::move(event->next_top);
  if (!event->token.has_value() || stopped_) return {};
  Output output{.num_tokens = 1};
  ++generated_;
  last_token_ = event->token->token;
  // The text of a token that ends the sequence is not sent.
  if (decoder_ != nullptr && !Ends(last_token_)) TakeText(last_token_, &output.text);
  if (wants_tokens_) output.tokens.push_back(std::move(*event->token));
  return WithPrompt(std::move(output));
}

Output Call::Close(const End& end, absl::Time now) {
  Output output;
  FinishReason reason = ReasonOf(end.reason);
  if (decoder_ != nullptr && !stopped_) {
    std::string rest;
    decoder_->Flush(&rest);
    PutText(rest, &output.text);
    const bool ended_by_token = reason == FinishReason::kEos || reason == FinishReason::kStopToken;
    if (stopped_ && ended_by_token) stopped_ = false;  // the token came first
    if (matcher_.has_value() && !matcher_->matched().has_value()) matcher_->Flush(&output.text);
  }
  if (stopped_) reason = FinishReason::kStopString;
  Finish finish{.reason = reason};
  if (reason == FinishReason::kStopString) {
    finish.stop_string = stop_strings_[static_cast<size_t>(*matcher_->matched())];
  }
  if (reason == FinishReason::kEos || reason == FinishReason::kStopToken) {
    finish.stop_token = last_token_;
  }
  // A stop string lies behind the engine: its state holds tokens that were dropped, or may.
  if (reason != FinishReason::kStopString) finish.state_stats = end.state_stats;
  output.finish = std::move(finish);
  output.tally = TallyAt(end, now);
  return WithPrompt(std::move(output));
}

Tally Call::TallyAt(const End& end, absl::Time now) const {
  return {.prompt_tokens = prompt_tokens_,
          .generated_tokens = generated_,
          .timings = end.timings,
          .phase = end.phase,
          .total = now - arrival_};
}

void Call::TakeText(int32_t token, std::string* text) {
  std::string piece;
  decoder_->Put(token, &piece);
  PutText(piece, text);
}

// Before min_new_tokens a stop string ends nothing, so it is looked for only in the text of the
// tokens from there on.
void Call::PutText(const std::string& piece, std::string* text) {
  if (!matcher_.has_value() || generated_ < min_new_tokens_) {
    *text += piece;
    return;
  }
  stopped_ = matcher_->Put(piece, text);
}

// The engine bars these tokens as long as they may not end anything.
bool Call::Ends(int32_t token) const {
  return std::find(ending_tokens_.begin(), ending_tokens_.end(), token) != ending_tokens_.end();
}

Output Call::WithPrompt(Output output) {
  if (facts_ == nullptr) return output;
  output.prompt = std::move(facts_);
  output.scored = std::move(scored_);
  output.next = std::move(next_);
  output.next_top = std::move(next_top_);
  return output;
}

}  // namespace eddy
