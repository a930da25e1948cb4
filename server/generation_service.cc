#include "server/generation_service.h"

#include <memory>
#include <utility>

#include "server/convert_generate.h"
#include "server/convert_text.h"
#include "server/metrics.h"
#include "server/token_stream.h"
#include "server/unary_reply.h"
#include "server/wire.h"

namespace eddy {
namespace {

// The model's side of the server, or why the call is not taken.
std::optional<Error> TakeCall(const ServiceContext& context, const grpc::ByteBuffer& bytes,
                              google::protobuf::Message* request, const Backend** backend) {
  if (std::optional<Error> error = context.lifecycle->Refusal()) return error;
  *backend = context.backend.load(std::memory_order_acquire);
  return ReadMessage(bytes, request);
}

// Reads a request for the engine with `read`, and starts it. `render` makes the answer, or one
// message of it, of output and shape.
template <typename Request, typename Read, typename Render, typename SomeReply>
void StartCall(const ServiceContext& context, const grpc::ByteBuffer& bytes, MethodLabel method,
               Read read, Render render, SomeReply* reply) {
  Request request;
  const Backend* backend = nullptr;
  if (std::optional<Error> error = TakeCall(context, bytes, &request, &backend)) {
    return reply->Refuse(std::move(*error));
  }
  Rpc& rpc = reply->rpc();
  Faults faults;
  rpc.ChooseId(request.request_id(), &faults);
  const CallTimes times{.arrival = rpc.arrival(), .client_deadline = rpc.client_deadline()};
  PlannedCall call;
  if (std::optional<Error> error =
          read(request, *backend->model, times, std::move(faults), &call)) {
    return reply->Refuse(std::move(*error));
  }
  call.shape.request_id = rpc.id();
  rpc.CountForEngine(call.plan.request.max_new_tokens);
  context.env.metrics->CountRequest(method, call.plan.request.max_new_tokens);
  const RequestId id = backend->delivery->Open(reply);
  reply->Connect([render, shape = std::move(call.shape)](
                     const Output& output) { return WriteMessage(render(output, shape)); },
                 backend->delivery, id);
  backend->admission->Start(id, std::move(call.plan));
}

// Reads a request that needs only the tokenizer, and answers it on an intake thread.
template <typename Request, typename Check, typename Work>
void StartTextCall(const ServiceContext& context, const grpc::ByteBuffer& bytes, Check check,
                   Work work, UnaryReply* reply) {
  auto request = std::make_unique<Request>();
  const Backend* backend = nullptr;
  if (std::optional<Error> error = TakeCall(context, bytes, request.get(), &backend)) {
    return reply->Refuse(std::move(*error));
  }
  const ServedModel* const model = backend->model;
  if (std::optional<Error> error = check(*request, *model)) {
    return reply->Refuse(std::move(*error));
  }
  // The reply is the job's once it is pushed: the job may be done before Do returns.
  std::optional<Error> error = backend->admission->Do(
      static_cast<int64_t>(bytes.Length()),
      [work, model, reply, request = std::move(request)] { work(*request, *model, reply); });
  if (error.has_value()) reply->Refuse(std::move(*error));
}

}  // namespace

grpc::ServerUnaryReactor* GenerationService::Generate(grpc::CallbackServerContext* call,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* answer) {
  auto* const reply =
      new UnaryReply(Rpc(call, "eddy.v1.GenerationService/Generate", &context_->env), answer);
  StartCall<v1::GenerateRequest>(*context_, *request, MethodLabel::kGenerate, ReadGenerateRequest,
                                 ToGenerateResponse, reply);
  return reply;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request) {
  auto* const reply =
      new TokenStream(Rpc(call, "eddy.v1.GenerationService/GenerateStream", &context_->env),
                      context_->outbox_bytes_max);
  StartCall<v1::GenerateRequest>(*context_, *request, MethodLabel::kGenerateStream,
                                 ReadGenerateRequest, ToGenerateResponse, reply);
  return reply;
}

grpc::ServerUnaryReactor* GenerationService::Score(grpc::CallbackServerContext* call,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* answer) {
  auto* const reply =
      new UnaryReply(Rpc(call, "eddy.v1.GenerationService/Score", &context_->env), answer);
  StartCall<v1::ScoreRequest>(*context_, *request, MethodLabel::kScore, ReadScoreRequest,
                              ToScoreResponse, reply);
  return reply;
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* call,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* answer) {
  auto* const reply =
      new UnaryReply(Rpc(call, "eddy.v1.GenerationService/Tokenize", &context_->env), answer);
  auto work = [](const v1::TokenizeRequest& text, const ServedModel& model, UnaryReply* to) {
    v1::TokenizeResponse response;
    std::optional<Error> error = Encode(text, model, &response);
    return error.has_value() ? to->Refuse(std::move(*error)) : to->Answer(response);
  };
  StartTextCall<v1::TokenizeRequest>(*context_, *request, CheckTokenizeRequest, work, reply);
  return reply;
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* call,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* answer) {
  auto* const reply =
      new UnaryReply(Rpc(call, "eddy.v1.GenerationService/Detokenize", &context_->env), answer);
  auto work = [](const v1::DetokenizeRequest& ids, const ServedModel& model, UnaryReply* to) {
    to->Answer(Decode(ids, model));
  };
  StartTextCall<v1::DetokenizeRequest>(*context_, *request, CheckDetokenizeRequest, work, reply);
  return reply;
}

}  // namespace eddy
