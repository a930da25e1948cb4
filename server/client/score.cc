// eddy score: a line for each token, then sum and perplexity.
#include <cmath>
#include <utility>

#include "base/log.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "server/client/command.h"
#include "server/client/prompt.h"
#include "server/client/render.h"

namespace eddy::client {
namespace {

class Score : public Command {
 public:
  void AddFlags(FlagSet* flags) override {
    prompt_.AddTo(flags);
    flags->Add("first_token", &first_token_, flag::Number(0, UINT32_MAX),
               "report from this token of the prompt on");
    flags->Add("top", &top_, flag::Number(0, 20), "and so many of the likeliest tokens");
    flags->Add("next_token_ids", &next_token_ids_, flag::Text("ids with commas between them"),
               "report these as the token after the prompt");
  }

  std::vector<std::string> Prepare(const CommonFlags& common, const FlagSet& flags,
                                   const std::vector<std::string>& words) override {
    std::vector<std::string> faults = NoWords(words);
    absl::StatusOr<Prompt> prompt = ReadPrompt(prompt_, flags);
    if (prompt.ok()) {
      SetPrompt(*std::move(prompt), &request_);
    } else {
      faults.emplace_back(prompt.status().message());
    }
    const absl::StatusOr<std::vector<uint32_t>> next = ParseIds("next_token_ids", next_token_ids_);
    if (next.ok()) {
      request_.mutable_next_token_ids()->Assign(next->begin(), next->end());
    } else {
      faults.emplace_back(next.status().message());
    }
    request_.set_model(common.model);
    request_.set_request_id(common.request_id);
    request_.set_first_token(first_token_);
    request_.set_top_logprobs(top_);
    return faults;
  }

  grpc::Status Run(Connection* connection, Output* output) override {
    const auto stub = v1::GenerationService::NewStub(connection->channel());
    grpc::ClientContext context;
    connection->Prepare(&context);
    v1::ScoreResponse response;
    grpc::Status status = stub->Score(&context, request_, &response);
    connection->NoteTrace(context);
    if (!status.ok()) return status;
    if (output->json) {
      output->out << Json(response) << "\n";
      return status;
    }
    for (const v1::TokenLogprob& logprob : response.logprobs()) {
      PrintLogprob(logprob, output->out);
    }
    for (const v1::Candidate& candidate : response.next()) {
      output->out << "next\t";
      PrintCandidate(candidate, output->out);
      output->out << "\n";
    }
    output->out << "sum " << response.sum_logprob() << ", tokens " << response.scored_tokens();
    if (response.scored_tokens() > 0) {
      output->out << ", perplexity "
                  << std::exp(-response.sum_logprob() / response.scored_tokens());
    }
    output->out << "\n";
    return status;
  }

 private:
  PromptFlags prompt_;
  uint32_t first_token_ = 0;
  uint32_t top_ = 0;
  std::string next_token_ids_;
  v1::ScoreRequest request_;
};

}  // namespace

std::unique_ptr<Command> MakeScore() { return std::make_unique<Score>(); }

}  // namespace eddy::client
