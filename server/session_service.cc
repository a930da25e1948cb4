#include "server/session_service.h"

#include "server/features.h"

namespace eddy {
namespace {

// A call that ends as soon as it begins. Owns itself: OnDone deletes it.
template <typename Reactor>
class RefusedCall final : public Reactor {
 public:
  explicit RefusedCall(Rpc rpc) {
    this->Finish(rpc.Close({.error = FeatureDisabled(kFeatureSessions)}));
  }

 private:
  void OnDone() override { delete this; }
};

using RefusedUnary = RefusedCall<grpc::ServerUnaryReactor>;

}  // namespace

grpc::ServerUnaryReactor* SessionService::CreateSession(grpc::CallbackServerContext* call,
                                                        const v1::CreateSessionRequest*,
                                                        v1::CreateSessionResponse*) {
  return new RefusedUnary(Rpc(call, "eddy.v1.SessionService/CreateSession", &context_->env));
}

grpc::ServerUnaryReactor* SessionService::GetSession(grpc::CallbackServerContext* call,
                                                     const v1::GetSessionRequest*,
                                                     v1::GetSessionResponse*) {
  return new RefusedUnary(Rpc(call, "eddy.v1.SessionService/GetSession", &context_->env));
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* call,
                                                       const v1::ListSessionsRequest*,
                                                       v1::ListSessionsResponse*) {
  return new RefusedUnary(Rpc(call, "eddy.v1.SessionService/ListSessions", &context_->env));
}

grpc::ServerUnaryReactor* SessionService::ForkSession(grpc::CallbackServerContext* call,
                                                      const v1::ForkSessionRequest*,
                                                      v1::ForkSessionResponse*) {
  return new RefusedUnary(Rpc(call, "eddy.v1.SessionService/ForkSession", &context_->env));
}

grpc::ServerUnaryReactor* SessionService::DeleteSession(grpc::CallbackServerContext* call,
                                                        const v1::DeleteSessionRequest*,
                                                        v1::DeleteSessionResponse*) {
  return new RefusedUnary(Rpc(call, "eddy.v1.SessionService/DeleteSession", &context_->env));
}

grpc::ServerWriteReactor<v1::ExportSessionResponse>* SessionService::ExportSession(
    grpc::CallbackServerContext* call, const v1::ExportSessionRequest*) {
  return new RefusedCall<grpc::ServerWriteReactor<v1::ExportSessionResponse>>(
      Rpc(call, "eddy.v1.SessionService/ExportSession", &context_->env));
}

grpc::ServerReadReactor<v1::ImportSessionRequest>* SessionService::ImportSession(
    grpc::CallbackServerContext* call, v1::ImportSessionResponse*) {
  return new RefusedCall<grpc::ServerReadReactor<v1::ImportSessionRequest>>(
      Rpc(call, "eddy.v1.SessionService/ImportSession", &context_->env));
}

}  // namespace eddy
