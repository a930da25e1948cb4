#include "server/model_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/checks.h"
#include "server/convert_generate.h"
#include "server/convert_model.h"
#include "server/unary_reply.h"
#include "server/wire.h"

namespace eddy {
namespace {

std::optional<Error> CheckListModels(const v1::ListModelsRequest& request) {
  Faults faults;
  CheckInteger("page_size", request.page_size(), 0, 100, &faults);
  if (!request.page_token().empty()) {
    // All models fit on one page, so that no token was ever given out.
    faults.Add("page_token", absl::StrCat("page_token ", Shown(request.page_token()),
                                          " was not given out by this server"));
  }
  if (faults.empty()) return std::nullopt;
  return faults.ToError();
}

}  // namespace

grpc::ServerUnaryReactor* ModelService::ListModels(grpc::CallbackServerContext* call,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* answer) {
  auto* const reply =
      new UnaryReply(Rpc(call, "eddy.v1.ModelService/ListModels", &context_->env), answer);
  v1::ListModelsRequest message;
  std::optional<Error> error = context_->lifecycle->Refusal();
  if (!error.has_value()) error = ReadMessage(*request, &message);
  if (!error.has_value()) error = CheckListModels(message);
  if (error.has_value()) {
    reply->Refuse(std::move(*error));
    return reply;
  }
  v1::ListModelsResponse response;
  *response.add_models() = ToModel(*context_->backend.load(std::memory_order_acquire)->model);
  reply->Answer(response);
  return reply;
}

grpc::ServerUnaryReactor* ModelService::GetModel(grpc::CallbackServerContext* call,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* answer) {
  auto* const reply =
      new UnaryReply(Rpc(call, "eddy.v1.ModelService/GetModel", &context_->env), answer);
  v1::GetModelRequest message;
  std::optional<Error> error = context_->lifecycle->Refusal();
  if (!error.has_value()) error = ReadMessage(*request, &message);
  const Backend* const backend = context_->backend.load(std::memory_order_acquire);
  if (!error.has_value()) error = CheckModel(message.model(), *backend->model);
  if (error.has_value()) {
    reply->Refuse(std::move(*error));
    return reply;
  }
  v1::GetModelResponse response;
  *response.mutable_model() = ToModel(*backend->model);
  reply->Answer(response);
  return reply;
}

grpc::ServerUnaryReactor* ModelService::GetServerStatus(grpc::CallbackServerContext* call,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* answer) {
  auto* const reply =
      new UnaryReply(Rpc(call, "eddy.v1.ModelService/GetServerStatus", &context_->env), answer);
  v1::GetServerStatusRequest message;
  if (std::optional<Error> error = ReadMessage(*request, &message)) {
    reply->Refuse(std::move(*error));
    return reply;
  }
  reply->Answer(ToServerStatus(context_->lifecycle->state(), context_->start_time,
                               context_->env.clock->Now(),
                               context_->backend.load(std::memory_order_acquire)));
  return reply;
}

}  // namespace eddy
