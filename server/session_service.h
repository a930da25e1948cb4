// Sessions are not offered by this server: every call says so.
#pragma once

#include <grpcpp/grpcpp.h>

#include "eddy/v1/session.grpc.pb.h"
#include "server/backend.h"

namespace eddy {

// UNIMPLEMENTED, with an ErrorInfo that names the feature, which the library's own answer for an
// unknown method lacks. `context` outlives it.
class SessionService final : public v1::SessionService::CallbackService {
 public:
  explicit SessionService(ServiceContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* call,
                                          const v1::CreateSessionRequest* request,
                                          v1::CreateSessionResponse* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* call,
                                       const v1::GetSessionRequest* request,
                                       v1::GetSessionResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* call,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* call,
                                        const v1::ForkSessionRequest* request,
                                        v1::ForkSessionResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* call,
                                          const v1::DeleteSessionRequest* request,
                                          v1::DeleteSessionResponse* response) override;
  grpc::ServerWriteReactor<v1::ExportSessionResponse>* ExportSession(
      grpc::CallbackServerContext* call, const v1::ExportSessionRequest* request) override;
  grpc::ServerReadReactor<v1::ImportSessionRequest>* ImportSession(
      grpc::CallbackServerContext* call, v1::ImportSessionResponse* response) override;

 private:
  ServiceContext* const context_;
};

}  // namespace eddy
