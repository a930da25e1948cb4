#include "tests/loadtest/fake_server.h"

#include <grpcpp/alarm.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "loadtest/call.h"

namespace eddy::loadtest {

constexpr uint32_t kVocabulary = 100;

// One call: a timer, a write, the next timer. Its parts follow each other, so they need no lock.
class FakeServer::Stream : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  Stream(FakeServer* server, const v1::GenerateRequest& request)
      : server_(server),
        arrived_us_(NowUs()),
        tokens_left_(static_cast<int>(request.stopping().max_new_tokens())) {
    times_.max_new_tokens = request.stopping().max_new_tokens();
    times_.prompt.assign(request.token_ids().ids().begin(), request.token_ids().ids().end());
    {
      MutexLock lock(&server_->mu_);
      number_ = server_->arrived_++;
      answer_ = server_->plan_(number_);
    }
    tokens_left_ -= answer_.tokens_missing;
    if (!answer_.refusal.ok()) {
      Finish(answer_.refusal);
    } else {
      due_ = absl::Now() + answer_.first;
      AwaitDue();
    }
  }

 private:
  void AwaitDue() {
    absl::Time due = due_;
    {
      MutexLock lock(&server_->mu_);
      due = std::max(due, server_->stalled_until_);
    }
    if (due <= absl::Now()) {
      Write();
      return;
    }
    alarm_.emplace();
    alarm_->Set(absl::ToChronoTime(due), [this](bool) { AwaitDue(); });
  }

  void Write() {
    const int tokens = std::min(answer_.tokens_per_message, tokens_left_);
    message_.Clear();
    message_.add_outputs()->set_num_tokens(static_cast<uint32_t>(tokens));
    tokens_left_ -= tokens;
    if (times_.first_ms == 0) {
      times_.first_ms = static_cast<double>(NowUs() - arrived_us_) / 1e3;
      MutexLock lock(&server_->mu_);
      server_->times_[number_] = times_;
    }
    if (tokens_left_ > 0) {
      StartWrite(&message_);
    } else {
      StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
      return;
    }
    if (tokens_left_ == 0) return;  // finished with the write
    due_ += answer_.between;
    AwaitDue();
  }

  void OnCancel() override {
    MutexLock lock(&server_->mu_);
    ++server_->cancelled_;
  }

  void OnDone() override { delete this; }

  FakeServer* const server_;
  const int64_t arrived_us_;
  int tokens_left_;
  int number_ = 0;
  FakeAnswer answer_;
  FakeTimes times_;
  absl::Time due_;
  v1::GenerateResponse message_;
  std::optional<grpc::Alarm> alarm_;
};

class FakeServer::Generation : public v1::GenerationService::CallbackService {
 public:
  explicit Generation(FakeServer* server) : server_(server) {}
  grpc::ServerWriteReactor<v1::GenerateResponse>* GenerateStream(
      grpc::CallbackServerContext*, const v1::GenerateRequest* request) override {
    return new Stream(server_, *request);
  }

 private:
  FakeServer* const server_;
};

class FakeServer::Model : public v1::ModelService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest*,
                                     v1::GetModelResponse* answer) override {
    answer->mutable_model()->set_name("fake");
    answer->mutable_model()->set_vocab_size(kVocabulary);
    return Ok(context);
  }
  grpc::ServerUnaryReactor* GetServerStatus(grpc::CallbackServerContext* context,
                                            const v1::GetServerStatusRequest*,
                                            v1::GetServerStatusResponse* answer) override {
    answer->set_version("0");
    return Ok(context);
  }

 private:
  static grpc::ServerUnaryReactor* Ok(grpc::CallbackServerContext* context) {
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

FakeServer::FakeServer(std::function<FakeAnswer(int)> plan)
    : plan_(std::move(plan)),
      generation_(std::make_unique<Generation>(this)),
      model_(std::make_unique<Model>()) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(generation_.get());
  builder.RegisterService(model_.get());
  server_ = builder.BuildAndStart();
  EDDY_CHECK(server_ != nullptr && port_ > 0);
}

FakeServer::~FakeServer() {
  server_->Shutdown();
  server_->Wait();
}

std::string FakeServer::target() const { return absl::StrCat("127.0.0.1:", port_); }

void FakeServer::Stall(absl::Duration how_long) {
  MutexLock lock(&mu_);
  stalled_until_ = absl::Now() + how_long;
}

std::vector<FakeTimes> FakeServer::times() const {
  MutexLock lock(&mu_);
  std::vector<FakeTimes> times;
  for (const auto& [number, call] : times_) times.push_back(call);
  return times;
}

int FakeServer::cancelled() const {
  MutexLock lock(&mu_);
  return cancelled_;
}

}  // namespace eddy::loadtest
