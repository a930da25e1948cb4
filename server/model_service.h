// What is loaded and how busy it is.
#pragma once

#include <grpcpp/grpcpp.h>

#include "eddy/v1/model.grpc.pb.h"
#include "server/backend.h"

namespace eddy {

using RawModelService = v1::ModelService::WithRawCallbackMethod_ListModels<
    v1::ModelService::WithRawCallbackMethod_GetModel<
        v1::ModelService::WithRawCallbackMethod_GetServerStatus<v1::ModelService::Service>>>;

// Answers at once, whatever the engine does; GetServerStatus also while the model is being loaded
// and while the server drains. `context` outlives it.
class ModelService final : public RawModelService {
 public:
  explicit ModelService(ServiceContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* GetServerStatus(grpc::CallbackServerContext* call,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* answer) override;

 private:
  ServiceContext* const context_;
};

}  // namespace eddy
