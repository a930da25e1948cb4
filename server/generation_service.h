// The calls that generate and score text.
#pragma once

#include <grpcpp/grpcpp.h>

#include "eddy/v1/generation.grpc.pb.h"
#include "server/backend.h"

namespace eddy {

// All methods are raw; see wire.h.
using RawGenerationService = v1::GenerationService::WithRawCallbackMethod_Generate<
    v1::GenerationService::WithRawCallbackMethod_GenerateStream<
        v1::GenerationService::WithRawCallbackMethod_Score<
            v1::GenerationService::WithRawCallbackMethod_Tokenize<
                v1::GenerationService::WithRawCallbackMethod_Detokenize<
                    v1::GenerationService::Service>>>>>;

// Each handler reads and checks its request, opens a reply, hands both on and returns. `context`
// outlives it.
class GenerationService final : public RawGenerationService {
 public:
  explicit GenerationService(ServiceContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* answer) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream(
      grpc::CallbackServerContext* call, const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* call,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* answer) override;

 private:
  ServiceContext* const context_;
};

}  // namespace eddy
