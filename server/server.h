// The server as a whole, from its ports to the engine.
#pragma once

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/executor.h"
#include "server/backend.h"
#include "server/config.h"
#include "server/served_model.h"

namespace eddy {

// What is served once it is loaded.
struct ModelToServe {
  ModelInfo info = {};
  Capacity capacity = {};
  std::unique_ptr<const Tokenizer> tokenizer = nullptr;
  std::unique_ptr<Executor> executor = nullptr;  // its device outlives the server
  DeviceInfo device = {};
  absl::Duration load_time = absl::ZeroDuration();
};

// Life: Start binds all ports and says NOT_SERVING; Serve; Leave, Drain, and at last the
// destructor, which cuts off what is left. All of these from one thread; never from one of gRPC's.
class Server {
 public:
  // The ports that were bound; 0: that one is off.
  struct Ports {
    int listen = 0;
    int admin_listen = 0;
    int metrics_listen = 0;
  };

  // `wake` is called, on any thread, whenever something happened that who waits for this server may
  // want to look at: the last open call is gone, or the device was lost. Unavailable, with one
  // line, if a port cannot be had. `clock` outlives the server.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerConfig& config,
                                                       const Clock* clock,
                                                       absl::AnyInvocable<void()> wake);
  ~Server();

  void Serve(ModelToServe model);
  // Health says NOT_SERVING; calls are still taken, until all clients have heard of it.
  void Leave();
  // New calls are refused, those that were taken go on.
  void Drain();
  // Ends all calls as DRAIN_TIMEOUT.
  void CutOffAll();

  int open_calls() const;
  bool device_lost() const;
  const Ports& ports() const;
  // Of the last turn of the engine's loop; nothing has happened before Serve.
  StepStats last_step() const;

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace eddy
