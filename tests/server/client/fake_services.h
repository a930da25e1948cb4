// Services that answer from a script and keep what they were asked.
#pragma once

#include <google/protobuf/util/json_util.h>
#include <grpcpp/server_context.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "eddy/v1/generation.grpc.pb.h"
#include "eddy/v1/model.grpc.pb.h"

namespace eddy::client {

template <typename Message>
Message FromJson(const std::string& json) {
  Message message;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &message);
  EXPECT_TRUE(status.ok()) << json << ": " << status.ToString();
  return message;
}

// Keeps the last request and answers as told. One call at a time.
class FakeGeneration : public v1::GenerationService::Service {
 public:
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        v1::GenerateResponse* response) override {
    generate = *request;
    if (!generated.empty()) *response = generated.front();
    return status;
  }
  grpc::Status GenerateStream(grpc::ServerContext* context, const v1::GenerateRequest* request,
                              grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    ++streams;
    Trace(context);
    generate = *request;
    if (refusals > 0) {
      --refusals;
      return {grpc::StatusCode::UNAVAILABLE, "not yet"};
    }
    for (const v1::GenerateResponse& message : generated) writer->Write(message);
    return status;
  }
  grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                     v1::ScoreResponse* response) override {
    Trace(context);
    score = *request;
    *response = scored;
    return status;
  }
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    tokenize = *request;
    *response = tokenized;
    return status;
  }
  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    detokenize = *request;
    *response = detokenized;
    return status;
  }

  v1::GenerateRequest generate;
  v1::ScoreRequest score;
  v1::TokenizeRequest tokenize;
  v1::DetokenizeRequest detokenize;
  std::vector<v1::GenerateResponse> generated;
  v1::ScoreResponse scored;
  v1::TokenizeResponse tokenized;
  v1::DetokenizeResponse detokenized;
  grpc::Status status;  // after the answer
  int refusals = 0;
  int streams = 0;          // attempts of GenerateStream
  std::string traceparent;  // of the metadata
  std::string trace_id;     // for the trailers; empty: none

 private:
  void Trace(grpc::ServerContext* context) {
    const auto it = context->client_metadata().find("traceparent");
    traceparent = it == context->client_metadata().end()
                      ? ""
                      : std::string(it->second.data(), it->second.size());
    if (!trace_id.empty()) context->AddTrailingMetadata("x-trace-id", trace_id);
  }
};

class FakeModels : public v1::ModelService::Service {
 public:
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* response) override {
    // Two pages of one model each.
    response->add_models()->set_name(request->page_token().empty() ? "first" : "second");
    if (request->page_token().empty()) response->set_next_page_token("more");
    return grpc::Status::OK;
  }
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override {
    response->mutable_model()->set_name(request->model());
    response->mutable_model()->set_vocab_size(512);
    return grpc::Status::OK;
  }
  grpc::Status GetServerStatus(grpc::ServerContext*, const v1::GetServerStatusRequest*,
                               v1::GetServerStatusResponse* response) override {
    response->set_state(v1::SERVER_STATE_SERVING);
    response->add_loads()->set_model("tales");
    response->mutable_device()->set_weight_bytes(uint64_t{35} << 20);
    response->mutable_device()->set_state_bytes(uint64_t{3} << 17);
    response->mutable_device()->set_workspace_bytes(1000);
    return grpc::Status::OK;
  }
};

}  // namespace eddy::client
