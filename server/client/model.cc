// eddy model list, get and status.
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "eddy/v1/model.grpc.pb.h"
#include "server/client/command.h"
#include "server/client/render.h"

namespace eddy::client {
namespace {

std::string Layers(const v1::Model& model) {
  return absl::StrJoin(model.layers(), ", ", [](std::string* out, const v1::LayerGroup& group) {
    absl::StrAppend(out, group.count(), " ", group.type());
  });
}

void PrintModel(const v1::Model& model, std::ostream& out) {
  const v1::Limits& limits = model.limits();
  out << "name: " << model.name() << "\ntype: " << model.model_type()
      << "\nparameters: " << model.parameters() << "\nvocabulary: " << model.vocab_size()
      << "\nhidden size: " << model.hidden_size() << "\nlayers: " << Layers(model)
      << "\nweights: " << v1::DataType_Name(model.weight_type())
      << "\nstate: " << v1::DataType_Name(model.state_type()) << ", "
      << InMiB(model.state_bytes_per_sequence()) << " per sequence"
      << "\nfingerprint: " << absl::BytesToHexString(model.fingerprint())
      << "\nmax prompt tokens: " << limits.max_prompt_tokens()
      << "\nmax new tokens: " << limits.max_new_tokens()
      << "\nmax sequences: " << limits.max_sequences()
      << "\nmax message: " << InMiB(limits.max_message_bytes())
      << "\nmax request time: " << absl::FormatDuration(ToDuration(limits.max_request_time()))
      << "\n";
}

void PrintStatus(const v1::GetServerStatusResponse& status, std::ostream& out) {
  const v1::DeviceStatus& device = status.device();
  out << "state: " << v1::ServerState_Name(status.state()) << "\nversion: " << status.version()
      << " (" << status.commit() << ")\ndevice: " << device.backend() << " " << device.name()
      << "\nmemory: weights " << InMiB(device.weight_bytes()) << ", state "
      << InMiB(device.state_bytes()) << ", attention " << InMiB(device.kv_bytes()) << ", workspace "
      << InMiB(device.workspace_bytes()) << "\n";
  for (const v1::ModelLoad& load : status.loads()) {
    out << load.model() << ": " << load.running_sequences() << " running of " << load.slots_total()
        << " slots, " << load.waiting_requests() << " waiting with " << load.waiting_prompt_tokens()
        << " prompt tokens, the oldest for "
        << absl::FormatDuration(ToDuration(load.oldest_waiting())) << "\n";
  }
}

class ModelList : public Command {
 public:
  void AddFlags(FlagSet*) override {}
  std::vector<std::string> Prepare(const CommonFlags&, const FlagSet&,
                                   const std::vector<std::string>& words) override {
    return NoWords(words);
  }

  grpc::Status Run(Connection* connection, Output* output) override {
    const auto stub = v1::ModelService::NewStub(connection->channel());
    v1::ListModelsRequest request;
    v1::ListModelsResponse all;
    do {
      grpc::ClientContext context;
      connection->Prepare(&context);
      v1::ListModelsResponse page;
      grpc::Status status = stub->ListModels(&context, request, &page);
      if (!status.ok()) return status;
      all.mutable_models()->MergeFrom(page.models());
      // A server that gave the same page for ever would be read for ever.
      if (page.next_page_token() == request.page_token() && !request.page_token().empty()) {
        return {grpc::StatusCode::INTERNAL, "the server repeats a page of models"};
      }
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    if (output->json) {
      output->out << Json(all) << "\n";
      return grpc::Status::OK;
    }
    for (const v1::Model& model : all.models()) {
      output->out << model.name() << "\t" << model.model_type() << "\t" << model.parameters()
                  << " parameters\t" << Layers(model) << "\n";
    }
    return grpc::Status::OK;
  }
};

class ModelGet : public Command {
 public:
  void AddFlags(FlagSet*) override {}
  std::vector<std::string> Prepare(const CommonFlags& common, const FlagSet&,
                                   const std::vector<std::string>& words) override {
    request_.set_model(common.model);
    return NoWords(words);
  }

  grpc::Status Run(Connection* connection, Output* output) override {
    const auto stub = v1::ModelService::NewStub(connection->channel());
    grpc::ClientContext context;
    connection->Prepare(&context);
    v1::GetModelResponse response;
    grpc::Status status = stub->GetModel(&context, request_, &response);
    if (!status.ok()) return status;
    if (output->json) {
      output->out << Json(response) << "\n";
    } else {
      PrintModel(response.model(), output->out);
    }
    return status;
  }

 private:
  v1::GetModelRequest request_;
};

class ModelStatus : public Command {
 public:
  void AddFlags(FlagSet*) override {}
  std::vector<std::string> Prepare(const CommonFlags&, const FlagSet&,
                                   const std::vector<std::string>& words) override {
    return NoWords(words);
  }

  grpc::Status Run(Connection* connection, Output* output) override {
    const auto stub = v1::ModelService::NewStub(connection->channel());
    grpc::ClientContext context;
    connection->Prepare(&context);
    v1::GetServerStatusResponse response;
    grpc::Status status = stub->GetServerStatus(&context, {}, &response);
    if (!status.ok()) return status;
    if (output->json) {
      output->out << Json(response) << "\n";
    } else {
      PrintStatus(response, output->out);
    }
    return status;
  }
};

}  // namespace

std::unique_ptr<Command> MakeModelList() { return std::make_unique<ModelList>(); }
std::unique_ptr<Command> MakeModelGet() { return std::make_unique<ModelGet>(); }
std::unique_ptr<Command> MakeModelStatus() { return std::make_unique<ModelStatus>(); }

}  // namespace eddy::client
