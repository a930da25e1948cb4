// The gRPC client of a load test. Its header knows no gRPC, so that what measures and what reports
// need none either.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loadtest/call.h"
#include "loadtest/runner.h"

namespace eddy::loadtest {

struct ClientSettings {
  std::string target = "localhost:50051";  // any name gRPC resolves: "ipv4:127.0.0.1:1,127.0.0.1:2"
  std::string model = {};                  // empty: the server's default
  int channels = 1;                        // connections to each server
  std::string lb_policy = "pick_first";    // or "round_robin", over all addresses of the target
  int retries = 0;                         // of refused calls, by gRPC's own retry policy
  absl::Duration timeout = absl::Minutes(2);  // of each call, from its actual send
  std::optional<double> temperature = {};     // none: the model's
  bool ignore_eos = true;
  absl::Duration slow_reader_pause = absl::Milliseconds(200);
};

// What the report tells of the model.
struct ModelFacts {
  std::string name = {};
  std::string type = {};
  uint64_t parameters = 0;
  uint32_t vocabulary = 0;
  uint64_t state_bytes = 0;  // of one sequence
  uint32_t slots = 0;
  std::string server_version = {};
};

// The service config of the client's channels: JSON with balancing, health checks and retries.
std::string ServiceConfig(const std::string& lb_policy, int retries);

// Thread-safe. REQUIRES at destruction: no call is open.
class Client : public Target {
 public:
  // Connects and asks for the model. The server's error, if it cannot.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientSettings& settings);
  ~Client() override;

  const ModelFacts& model() const { return model_; }
  void Start(CallRecord* record, std::function<void()> done) override;

 private:
  struct Channels;
  explicit Client(const ClientSettings& settings);
  absl::Status AskModel();

  const ClientSettings settings_;
  std::unique_ptr<Channels> channels_;
  ModelFacts model_;
};

}  // namespace eddy::loadtest
