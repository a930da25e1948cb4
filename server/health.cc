#include "server/health.h"

#include <grpcpp/health_check_service_interface.h>

#include <utility>

namespace eddy {
namespace {

constexpr const char* kReadyNames[] = {"", "eddy.v1.GenerationService", "eddy.v1.ModelService",
                                       "eddy.v1.SessionService"};
constexpr char kLiveness[] = "liveness";

}  // namespace

Health::Health(std::vector<grpc::Server*> servers) : servers_(std::move(servers)) {
  SetReady(false);
  Set(kLiveness, true);
}

void Health::SetReady(bool ready) {
  for (const char* const name : kReadyNames) Set(name, ready);
}

void Health::SetAlive(bool alive) {
  {
    MutexLock lock(&mu_);
    if (alive_ == alive) return;
    alive_ = alive;
  }
  Set(kLiveness, alive);
}

bool Health::alive() const {
  MutexLock lock(&mu_);
  return alive_;
}

void Health::Set(const char* name, bool serving) {
  for (grpc::Server* const server : servers_) {
    server->GetHealthCheckService()->SetServingStatus(name, serving);
  }
}

}  // namespace eddy
