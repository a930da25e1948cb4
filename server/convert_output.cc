#include "server/convert_output.h"

#include "server/checks.h"

namespace eddy {
namespace {

std::string BytesOf(int32_t token, const ServedModel& model) {
  return model.tokenizer == nullptr ? std::string() : model.tokenizer->Bytes(token);
}

void SetCandidate(const Candidate& from, const ServedModel& model, v1::Candidate* to) {
  to->set_token_id(static_cast<uint32_t>(from.token));
  to->set_logprob(from.logprob);
  to->set_token(BytesOf(from.token, model));
}

void SetLogprob(const TokenReport& from, const ServedModel& model, v1::TokenLogprob* to) {
  to->set_token_id(static_cast<uint32_t>(from.token));
  to->set_logprob(from.logprob);
  to->set_rank(static_cast<uint32_t>(from.rank));
  to->set_token(BytesOf(from.token, model));
  for (const Candidate& candidate : from.top) SetCandidate(candidate, model, to->add_top());
}

// A token that nothing predicts.
void SetUnpredicted(int32_t token, const ServedModel& model, v1::TokenLogprob* to) {
  to->set_token_id(static_cast<uint32_t>(token));
  to->set_token(BytesOf(token, model));
}

// The prompt's tokens from shape.first_scored on.
template <typename Logprobs>
void SetPromptLogprobs(const Output& output, const ResponseShape& shape, Logprobs* logprobs) {
  if (shape.first_scored == 0) {
    SetUnpredicted(output.prompt->first_token, *shape.model, logprobs->Add());
  }
  for (const TokenReport& report : output.scored) {
    SetLogprob(report, *shape.model, logprobs->Add());
  }
}

void SetPromptInfo(const Output& output, const ResponseShape& shape, v1::PromptInfo* info) {
  const PromptFacts& facts = *output.prompt;
  info->set_request_id(shape.request_id);
  info->set_model(shape.model->name);
  info->set_prompt_tokens(static_cast<uint32_t>(facts.prompt_tokens));
  info->set_truncated_tokens(static_cast<uint32_t>(facts.truncated_tokens));
  if (facts.text.has_value()) info->set_prompt_text(*facts.text);
  for (const int32_t id : facts.ids) info->add_prompt_token_ids(static_cast<uint32_t>(id));
}

void SetUncertainty(const TokenReport& from, v1::TokenUncertainty* to) {
  to->set_entropy(from.entropy);
  if (from.kalman.has_value()) {
    to->set_kalman_precision_mean(from.kalman->precision);
    to->set_kalman_precision_min(from.kalman->least_precision);
    to->set_kalman_readout_std(from.kalman->deviation);
    to->set_kalman_surprise(from.kalman->surprise);
    to->set_kalman_information(from.kalman->information);
    to->set_kalman_spread(from.kalman->spread);
  }
  if (from.delta.has_value()) {
    to->set_delta_residual(from.delta->residual);
    to->set_delta_contraction(from.delta->contraction);
    to->set_delta_decay(from.delta->decay);
  }
}

void SetStateStats(const FieldStats& from, v1::StateFieldStats* to) {
  to->set_layer(static_cast<uint32_t>(from.layer));
  to->set_layer_type(from.layer_type);
  to->set_field(from.field);
  to->set_elements(static_cast<uint64_t>(from.elements));
  to->set_min(from.min);
  to->set_max(from.max);
  to->set_mean(from.mean);
  to->set_rms(from.rms);
  to->set_nonfinite(static_cast<uint64_t>(from.nonfinite));
}

void SetTimings(const Tally& tally, v1::Timings* to) {
  *to->mutable_queue() = ToProto(tally.timings.queue);
  *to->mutable_prefill() = ToProto(tally.timings.prefill);
  *to->mutable_decode() = ToProto(tally.timings.decode);
  *to->mutable_total() = ToProto(tally.total);
  *to->mutable_restore() = ToProto(absl::ZeroDuration());
  to->set_prefill_steps(static_cast<uint32_t>(tally.timings.prefill_steps));
  to->set_decode_steps(static_cast<uint32_t>(tally.timings.decode_steps));
}

v1::FinishReason ToFinishReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kTimeLimit:
      return v1::FINISH_REASON_TIME_LIMIT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void SetFinish(const Output& output, const ResponseShape& shape, v1::FinishInfo* info) {
  const Finish& finish = *output.finish;
  info->set_reason(ToFinishReason(finish.reason));
  if (finish.stop_token >= 0) info->set_stop_token_id(static_cast<uint32_t>(finish.stop_token));
  if (finish.reason == FinishReason::kStopString) info->set_stop_string(finish.stop_string);
  info->mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(output.tally.prompt_tokens));
  info->mutable_usage()->set_generated_tokens(static_cast<uint32_t>(output.tally.generated_tokens));
  info->set_seed(shape.seed);
  if (shape.timings) SetTimings(output.tally, info->mutable_timings());
  for (const FieldStats& stats : finish.state_stats) SetStateStats(stats, info->add_state_stats());
}

}  // namespace

v1::GenerateResponse ToGenerateResponse(const Output& output, const ResponseShape& shape) {
  v1::GenerateResponse response;
  v1::SequenceOutput* const sequence = response.add_outputs();
  sequence->set_text(output.text);
  sequence->set_num_tokens(static_cast<uint32_t>(output.num_tokens));
  for (const TokenReport& report : output.tokens) {
    if (shape.token_ids) sequence->add_token_ids(static_cast<uint32_t>(report.token));
    if (shape.logprobs) SetLogprob(report, *shape.model, sequence->add_logprobs());
    if (shape.uncertainty) SetUncertainty(report, sequence->add_uncertainty());
  }
  if (output.finish.has_value()) SetFinish(output, shape, sequence->mutable_finish_info());
  if (output.prompt != nullptr) {
    v1::PromptInfo* const info = response.mutable_prompt_info();
    SetPromptInfo(output, shape, info);
    SetPromptLogprobs(output, shape, info->mutable_prompt_logprobs());
  }
  return response;
}

v1::ScoreResponse ToScoreResponse(const Output& output, const ResponseShape& shape) {
  v1::ScoreResponse response;
  SetPromptInfo(output, shape, response.mutable_prompt_info());
  SetPromptLogprobs(output, shape, response.mutable_logprobs());
  double sum = 0;
  for (const TokenReport& report : output.scored) sum += static_cast<double>(report.logprob);
  response.set_sum_logprob(sum);
  response.set_scored_tokens(static_cast<uint32_t>(output.scored.size()));
  if (shape.uncertainty) {
    // One per reported token: that of the unpredicted one is left at zero.
    if (shape.first_scored == 0) response.add_uncertainty();
    for (const TokenReport& report : output.scored) {
      SetUncertainty(report, response.add_uncertainty());
    }
  }
  for (const Candidate& candidate : output.next_top) {
    SetCandidate(candidate, *shape.model, response.add_next());
  }
  for (size_t i = 0; i < output.next.size(); ++i) {
    const Candidate candidate{.token = shape.next_tokens[i], .logprob = output.next[i]};
    SetCandidate(candidate, *shape.model, response.add_next());
  }
  SetTimings(output.tally, response.mutable_timings());
  return response;
}

}  // namespace eddy
