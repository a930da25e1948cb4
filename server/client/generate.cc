// eddy generate: text goes to standard output as it comes; all else goes to standard error.
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "eddy/v1/generation.grpc.pb.h"
#include "server/client/command.h"
#include "server/client/prompt.h"
#include "server/client/render.h"

namespace eddy::client {
namespace {

// A JSON list of texts is a list; all else is one text, also "[".
std::vector<std::string> ParseStop(const std::string& text) {
  const nlohmann::json list =
      nlohmann::json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> texts;
  if (!list.is_array()) return {text};
  for (const nlohmann::json& entry : list) {
    if (!entry.is_string()) return {text};
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

// What comes after the text, kept until then, so that the text stays together on a terminal.
struct Tail {
  std::vector<v1::TokenLogprob> logprobs;
  std::vector<v1::TokenUncertainty> uncertainty;
  std::optional<v1::Timings> timings;
  char last = '\n';  // of the text
};

class Generate : public Command {
 public:
  void AddFlags(FlagSet* flags) override {
    prompt_.AddTo(flags);
    flags->Add("stream", &stream_, flag::Bool(), "write tokens as they come");
    flags->Add("temperature", &temperature_, flag::Real(0, 10), "0: always the likeliest token");
    flags->Add("top_p", &top_p_, flag::Real(0, 1), "draw from the smallest set this probable");
    flags->Add("top_k", &top_k_, flag::Number(0, UINT32_MAX), "draw from so many tokens; 0: all");
    flags->Add("min_p", &min_p_, flag::Real(0, 1), "drop tokens this much less likely; 0: none");
    flags->Add("seed", &seed_, flag::Unsigned(), "equal seeds draw equal tokens");
    flags->Add("max_new_tokens", &max_new_tokens_, flag::Number(0, UINT32_MAX),
               "most tokens to generate; 0: the server's default");
    flags->Add("stop", &stop_, flag::Text("a text, or a JSON list of texts"), "ends the text");
    flags->Add("ignore_eos", &ignore_eos_, flag::Bool(), "go on after an end of text");
    flags->Add("time_limit", &time_limit_, flag::Time(absl::Milliseconds(1), absl::Hours(24)),
               "end well, with what there is, after this time");
    flags->Add("logprobs", &logprobs_, flag::Number(0, 20),
               "log-probability and rank of each token, and so many of the likeliest");
    flags->Add("uncertainty", &uncertainty_, flag::Bool(),
               "entropy of each step, in nats, and what the layers say");
    flags->Add("timings", &timings_, flag::Bool(), "where the time went");
    flags->Add("priority", &priority_, flag::Number(-100, 100), "higher is admitted sooner");
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
    request_.set_model(common.model);
    request_.set_request_id(common.request_id);
    request_.set_priority(priority_);
    SetSampling();
    v1::StoppingOptions* const stopping = request_.mutable_stopping();
    stopping->set_max_new_tokens(max_new_tokens_);
    stopping->set_ignore_eos(ignore_eos_);
    if (flags.given("stop")) {
      for (std::string& text : ParseStop(stop_)) stopping->add_stop_strings(std::move(text));
    }
    if (time_limit_.has_value()) *stopping->mutable_time_limit() = ToProto(*time_limit_);
    v1::ResponseOptions* const response = request_.mutable_response();
    response->set_timings(timings_);
    response->set_uncertainty(uncertainty_);
    response->set_logprobs(flags.given("logprobs"));
    response->set_top_logprobs(logprobs_);
    return faults;
  }

  grpc::Status Run(Connection* connection, Output* output) override {
    const auto stub = v1::GenerationService::NewStub(connection->channel());
    grpc::ClientContext context;
    connection->Prepare(&context);
    Tail tail;
    grpc::Status status;
    v1::GenerateResponse response;
    if (stream_) {
      const auto reader = stub->GenerateStream(&context, request_);
      while (reader->Read(&response)) {
        if (!Write(response, output, &tail)) context.TryCancel();
      }
      status = reader->Finish();
    } else {
      status = stub->Generate(&context, request_, &response);
      if (status.ok()) Write(response, output, &tail);
    }
    connection->NoteTrace(context);
    if (!output->out.good()) {
      return {grpc::StatusCode::UNKNOWN, "standard output cannot be written"};
    }
    if (output->terminal && tail.last != '\n') output->out << std::endl;
    for (const v1::TokenLogprob& logprob : tail.logprobs) PrintLogprob(logprob, output->err);
    for (const v1::TokenUncertainty& one : tail.uncertainty) {
      PrintUncertainty(one, output->err);
    }
    if (tail.timings.has_value()) PrintTimings(*tail.timings, output->err);
    return status;
  }

 private:
  void SetSampling() {
    v1::SamplingOptions* const sampling = request_.mutable_sampling();
    if (temperature_.has_value()) sampling->set_temperature(static_cast<float>(*temperature_));
    if (top_p_.has_value()) sampling->set_top_p(static_cast<float>(*top_p_));
    if (seed_.has_value()) sampling->set_seed(*seed_);
    sampling->set_top_k(top_k_);
    sampling->set_min_p(static_cast<float>(min_p_));
  }

  // Returns whether it could be written.
  static bool Write(const v1::GenerateResponse& response, Output* output, Tail* tail) {
    if (output->json) {
      output->out << Json(response) << std::endl;
      return output->out.good();
    }
    for (const v1::SequenceOutput& sequence : response.outputs()) {
      output->out << sequence.text();
      if (!sequence.text().empty()) tail->last = sequence.text().back();
      tail->logprobs.insert(tail->logprobs.end(), sequence.logprobs().begin(),
                            sequence.logprobs().end());
      tail->uncertainty.insert(tail->uncertainty.end(), sequence.uncertainty().begin(),
                               sequence.uncertainty().end());
      if (sequence.finish_info().has_timings()) tail->timings = sequence.finish_info().timings();
    }
    output->out << std::flush;
    return output->out.good();
  }

  PromptFlags prompt_;
  bool stream_ = true;
  std::optional<double> temperature_, top_p_;
  uint32_t top_k_ = 0;
  double min_p_ = 0;
  std::optional<uint64_t> seed_;
  uint32_t max_new_tokens_ = 0;
  std::string stop_;
  bool ignore_eos_ = false;
  std::optional<absl::Duration> time_limit_;
  uint32_t logprobs_ = 0;
  bool uncertainty_ = false;
  bool timings_ = false;
  int32_t priority_ = 0;
  v1::GenerateRequest request_;
};

}  // namespace

std::unique_ptr<Command> MakeGenerate() { return std::make_unique<Generate>(); }

}  // namespace eddy::client
