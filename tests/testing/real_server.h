// A real server that serves a real model, in this process.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/load_to_serve.h"
#include "tests/testing/running_server.h"
#include "tests/testing/test_device.h"

namespace eddy {

// An executor whose steps wait at a gate, and which remembers how much company a sequence had.
class GatedExecutor : public Executor {
 public:
  GatedExecutor(EchoControl* gate, std::atomic<int>* most, std::unique_ptr<Executor> real)
      : gate_(gate), most_(most), real_(std::move(real)) {}
  absl::StatusOr<StepResult> Run(const BatchPlan& plan) override {
    if (!gate_->EnterStep()) return absl::InternalError("the gate is broken");
    *most_ = std::max(most_->load(), static_cast<int>(plan.entries.size()));
    return real_->Run(plan);
  }

 private:
  EchoControl* const gate_;
  std::atomic<int>* const most_;  // written by the engine's thread alone
  const std::unique_ptr<Executor> real_;
};

// Loads and serves the model of a folder on the device under test; see test_device.h.
class RealServer {
 public:
  RealServer(const std::string& model_dir, int slots, int rows_per_step,
             DType matrices = DType::kF32)
      : opened_{.device = testing::OpenTestDevice(matrices)} {
    running_ = std::make_unique<RunningServer>([&](ServerSetting* setting) {
      ServerConfig& config = setting->config;
      config.model_dir = model_dir;
      config.model_name = "real";
      config.metrics_listen = "127.0.0.1:0";
      config.max_sequences = slots;
      config.max_rows_per_step = rows_per_step;
      config.max_waiting_requests = 100000;
      config.max_request_time = absl::Hours(1);
      absl::StatusOr<ModelToServe> model = LoadToServe(config, opened_);
      EXPECT_TRUE(model.ok()) << model.status();
      EDDY_CHECK(model.ok());
      EXPECT_EQ(model->capacity.slots, slots);
      model->executor = std::make_unique<GatedExecutor>(&gate_, &most_, std::move(model->executor));
      setting->model = *std::move(model);
    });
  }
  ~RealServer() {
    gate_.Open();
    running_.reset();
  }

  RunningServer& operator*() { return *running_; }
  RunningServer* operator->() { return running_.get(); }
  // Steps pass here. Open, unless a test closes it.
  EchoControl& gate() { return gate_; }
  // The most sequences that one step fed.
  int most_in_a_step() const { return most_; }

 private:
  EchoControl gate_;
  std::atomic<int> most_{0};
  const OpenedDevice opened_;
  std::unique_ptr<RunningServer> running_;
};

inline v1::TokenIds ToMessage(const std::vector<int32_t>& ids) {
  v1::TokenIds message;
  for (const int32_t id : ids) message.add_ids(static_cast<uint32_t>(id));
  return message;
}

// The most likely continuation of `prompt`, whatever the model thinks of ends.
inline v1::GenerateRequest GreedyRequest(const std::vector<int32_t>& prompt, int max_new_tokens) {
  v1::GenerateRequest request;
  *request.mutable_token_ids() = ToMessage(prompt);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_new_tokens(static_cast<uint32_t>(max_new_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_response()->set_token_ids(true);
  return request;
}

inline std::vector<int32_t> IdsOf(const v1::GenerateResponse& response) {
  std::vector<int32_t> ids;
  for (const v1::SequenceOutput& output : response.outputs()) {
    for (const uint32_t id : output.token_ids()) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace eddy
