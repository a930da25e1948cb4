// eddy tokenize and eddy detokenize: what one prints, the other takes.
#include <utility>

#include "absl/strings/str_join.h"
#include "base/log.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "server/client/command.h"
#include "server/client/prompt.h"
#include "server/client/render.h"

namespace eddy::client {
namespace {

class Tokenize : public Command {
 public:
  void AddFlags(FlagSet* flags) override {
    prompt_.AddTextTo(flags);
    flags->Add("spans", &spans_, flag::Bool(), "a line for each token: id, first byte, end, text");
  }

  std::vector<std::string> Prepare(const CommonFlags& common, const FlagSet& flags,
                                   const std::vector<std::string>& words) override {
    std::vector<std::string> faults = NoWords(words);
    absl::StatusOr<Prompt> prompt = ReadPrompt(prompt_, flags);
    if (prompt.ok()) {
      request_.set_text(std::move(prompt->text));
    } else {
      faults.emplace_back(prompt.status().message());
    }
    request_.set_model(common.model);
    request_.set_tokens(spans_);
    return faults;
  }

  grpc::Status Run(Connection* connection, Output* output) override {
    const auto stub = v1::GenerationService::NewStub(connection->channel());
    grpc::ClientContext context;
    connection->Prepare(&context);
    v1::TokenizeResponse response;
    grpc::Status status = stub->Tokenize(&context, request_, &response);
    if (!status.ok()) return status;
    if (output->json) {
      output->out << Json(response) << "\n";
    } else if (spans_) {
      for (int i = 0; i < std::min(response.tokens_size(), response.token_ids_size()); ++i) {
        const v1::TokenSpan& span = response.tokens(i);
        output->out << response.token_ids(i) << "\t" << span.begin() << "\t" << span.end() << "\t"
                    << JsonQuote(span.token()) << "\n";
      }
    } else {
      output->out << absl::StrJoin(response.token_ids(), ",") << "\n";
    }
    return status;
  }

 private:
  PromptFlags prompt_;
  bool spans_ = false;
  v1::TokenizeRequest request_;
};

class Detokenize : public Command {
 public:
  void AddFlags(FlagSet* flags) override {
    flags->Add("token_ids", &token_ids_, flag::Text("ids with commas between them"), "the tokens");
  }

  std::vector<std::string> Prepare(const CommonFlags& common, const FlagSet& flags,
                                   const std::vector<std::string>& words) override {
    std::vector<std::string> faults = NoWords(words);
    if (!flags.given("token_ids")) faults.emplace_back("give --token_ids");
    const absl::StatusOr<std::vector<uint32_t>> ids = ParseIds("token_ids", token_ids_);
    if (ids.ok()) {
      request_.mutable_token_ids()->Assign(ids->begin(), ids->end());
    } else {
      faults.emplace_back(ids.status().message());
    }
    request_.set_model(common.model);
    return faults;
  }

  grpc::Status Run(Connection* connection, Output* output) override {
    const auto stub = v1::GenerationService::NewStub(connection->channel());
    grpc::ClientContext context;
    connection->Prepare(&context);
    v1::DetokenizeResponse response;
    grpc::Status status = stub->Detokenize(&context, request_, &response);
    if (!status.ok()) return status;
    output->out << (output->json ? Json(response) : response.text());
    if (output->json || output->terminal) output->out << "\n";
    return status;
  }

 private:
  std::string token_ids_;
  v1::DetokenizeRequest request_;
};

}  // namespace

std::unique_ptr<Command> MakeTokenize() { return std::make_unique<Tokenize>(); }
std::unique_ptr<Command> MakeDetokenize() { return std::make_unique<Detokenize>(); }

}  // namespace eddy::client
