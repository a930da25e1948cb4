// Proves that many calls at once all end correctly and leave nothing behind: each answer is that of
// the same request alone, token for token, and afterwards no slot is in use and no stream open;
// with the echo, which spends its time in the server, and with a real model, which spends it in the
// engine. Exact, for on one thread of the processor a row has the same bits in every company.
//
// The defaults keep the suite short. EDDY_SOAK_CALLS sets the number of mixed calls,
// EDDY_SOAK_MODEL the folder of the real model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/testing/real_server.h"
#include "tests/testing/stream_client.h"

namespace eddy {
namespace {

constexpr int kSlots = 16;
constexpr int kKinds = 24;
constexpr int kThousand = 1000;

enum class Model { kEcho, kReal };

std::string Setting(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

class ManyCalls : public ::testing::TestWithParam<Model> {
 protected:
  ManyCalls() {
    if (GetParam() == Model::kReal) {
      real_ = std::make_unique<RealServer>(Setting("EDDY_SOAK_MODEL", "tests/golden/kaczmarz_a"),
                                           kSlots, /*rows_per_step=*/0);
      return;
    }
    echo_ = std::make_unique<RunningServer>([](ServerSetting* setting) {
      setting->slots = kSlots;
      setting->config.max_waiting_requests = 100000;
    });
  }

  RunningServer& server() { return real_ != nullptr ? **real_ : *echo_; }
  EchoControl& gate() { return real_ != nullptr ? real_->gate() : echo_->control(); }

  // A request and what it brings alone.
  struct Kind {
    v1::GenerateRequest request = {};
    std::vector<int32_t> answer = {};
  };
  // All different; half of them draw.
  std::vector<Kind> AskAlone(std::mt19937* random, int most_tokens) {
    std::mt19937& rng = *random;
    std::vector<Kind> kinds(kKinds);
    for (size_t i = 0; i < kinds.size(); ++i) {
      std::vector<int32_t> prompt(2 + rng() % 60);
      for (int32_t& token : prompt) token = static_cast<int32_t>(rng() % 64);
      prompt[1] = static_cast<int32_t>(i);
      Kind& kind = kinds[i];
      kind.request = GreedyRequest(prompt, static_cast<int>(1 + rng() % most_tokens));
      if (i % 2 == 0) kind.request.mutable_sampling()->set_temperature(1);
      kind.request.mutable_sampling()->set_seed(rng());
      const StreamResult alone = ReadStream(&server().generation(), kind.request);
      EXPECT_TRUE(alone.status.ok()) << alone.status.error_message();
      EXPECT_EQ(alone.token_ids.size(), kind.request.stopping().max_new_tokens());
      kind.answer = alone.token_ids;
    }
    return kinds;
  }

  void ExpectNothingLeft() {
    while (server().server().open_calls() > 0 || server().server().last_step().slots_used > 0) {
      std::this_thread::yield();
    }
    const v1::GetServerStatusResponse status = server().Status();
    EXPECT_EQ(status.loads(0).running_sequences(), 0u);
    EXPECT_EQ(status.loads(0).waiting_requests(), 0u);
    EXPECT_EQ(status.loads(0).waiting_prompt_tokens(), 0u);
  }

 private:
  std::unique_ptr<RunningServer> echo_;
  std::unique_ptr<RealServer> real_;
};

TEST_P(ManyCalls, AThousandStreamsAtOnceAnswerAsEachDoesAlone) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  const std::vector<Kind> kinds = AskAlone(&rng, /*most_tokens=*/40);
  gate().Close();  // all of them are open before the second one gets a token
  Countdown done(kThousand);
  std::vector<std::unique_ptr<StreamClient>> clients;
  for (size_t i = 0; i < kThousand; ++i) {
    clients.push_back(std::make_unique<StreamClient>(
        &server().generation(), kinds[i % kKinds].request, -1, [&] { done.Tick(); }));
  }
  while (server().server().open_calls() < kThousand) std::this_thread::yield();
  gate().Open();
  done.Await();
  for (size_t i = 0; i < kThousand; ++i) {
    const StreamResult& result = clients[i]->result();
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    ASSERT_EQ(result.token_ids, kinds[i % kKinds].answer) << "kind " << i % kKinds;
  }
  ExpectNothingLeft();
}

// What one of the mixed calls is asked for and may bring.
struct Mixed {
  const std::vector<int32_t>* answer = nullptr;
  bool refused = false;
  std::unique_ptr<StreamClient> client = nullptr;

  bool EndedWell() const {
    const StreamResult& result = client->result();
    const std::vector<int32_t>& ids = result.token_ids;
    switch (result.status.error_code()) {
      case grpc::OK:
        return !refused && ids == *answer;
      case grpc::CANCELLED:  // with the beginning of the answer
        return client->cancelled() && ids.size() <= answer->size() &&
               std::equal(ids.begin(), ids.end(), answer->begin());
      case grpc::INVALID_ARGUMENT:
        return refused && ids.empty();
      default:
        return false;
    }
  }
};

TEST_P(ManyCalls, MixedWithAThirdCancelledLeaveNothingBehind) {
  const int calls = std::atoi(Setting("EDDY_SOAK_CALLS", "1000").c_str());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  const std::vector<Kind> kinds = AskAlone(&rng, /*most_tokens=*/60);
  constexpr int kAtOnce = 200;
  int wrong = 0, cancelled = 0;
  for (int begun = 0; begun < calls; begun += kAtOnce) {
    Countdown done(kAtOnce);
    std::vector<Mixed> mixed(kAtOnce);
    for (Mixed& call : mixed) {
      const Kind& kind = kinds[rng() % kKinds];
      call.answer = &kind.answer;
      call.refused = rng() % 8 == 0;
      v1::GenerateRequest request = kind.request;
      if (call.refused) request.mutable_sampling()->set_top_p(2);
      if (rng() % 8 == 0) request.mutable_response()->set_logprobs(true);
      const int cancel_after = rng() % 3 == 0 ? static_cast<int>(rng() % 20) : -1;
      call.client = std::make_unique<StreamClient>(&server().generation(), std::move(request),
                                                   cancel_after, [&] { done.Tick(); });
    }
    done.Await();
    for (const Mixed& call : mixed) {
      if (!call.EndedWell()) ++wrong;
      if (call.client->result().status.error_code() == grpc::CANCELLED) ++cancelled;
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(cancelled, 0);  // not everything is over before its cancel comes
  std::printf("%d calls, %d cancelled in time\n", calls, cancelled);
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Models, ManyCalls, ::testing::Values(Model::kEcho, Model::kReal),
                         [](const auto& model) {
                           return model.param == Model::kEcho ? "Echo" : "Real";
                         });

}  // namespace
}  // namespace eddy
