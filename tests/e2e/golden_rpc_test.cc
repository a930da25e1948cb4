// Proves that what clients read over gRPC is what the reference programs said, for whole models:
// Score gives the log-probability of every token of both rows of a golden set within 1e-3, and
// Generate exactly their greedy continuation; alone, in company, with the fewest rows per step that
// the server takes, and in slots that others used before. The sets are those of
// tests/engine/golden_test.cc, which looks closer, without a server.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "tests/engine/model_runner.h"
#include "tests/testing/real_server.h"
#include "tests/testing/stream_client.h"

namespace eddy {
namespace {

constexpr double kLogprobTolerance = 1e-3;
constexpr int kOthers = 14;

// Calls that run at the same time, without a thread each. Destroyed after Await.
class Calls {
 public:
  Calls(v1::GenerationService::Stub* stub, int calls) : stub_(stub), left_(calls) {}

  const v1::GenerateResponse* Generate(v1::GenerateRequest request) {
    auto& call = generated_.emplace_back();
    call.request = std::move(request);
    stub_->async()->Generate(&call.context, &call.request, &call.response,
                             [this](const grpc::Status& status) { Note(status); });
    return &call.response;
  }
  const v1::ScoreResponse* Score(v1::ScoreRequest request) {
    auto& call = scored_.emplace_back();
    call.request = std::move(request);
    stub_->async()->Score(&call.context, &call.request, &call.response,
                          [this](const grpc::Status& status) { Note(status); });
    return &call.response;
  }
  // All of them; how many failed.
  int Await() {
    left_.Await();
    return failed_;
  }

 private:
  template <typename Request, typename Response>
  struct Call {
    grpc::ClientContext context = {};
    Request request = {};
    Response response = {};
  };
  void Note(const grpc::Status& status) {
    if (!status.ok()) ++failed_;
    left_.Tick();
  }

  v1::GenerationService::Stub* const stub_;
  Countdown left_;
  std::atomic<int> failed_{0};
  // Deques, so that calls stay where they are.
  std::deque<Call<v1::GenerateRequest, v1::GenerateResponse>> generated_;
  std::deque<Call<v1::ScoreRequest, v1::ScoreResponse>> scored_;
};

class GoldenRpc : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    set_ = ReadGoldenSet(GetParam());
    ASSERT_TRUE(set_.found) << set_.dir << " is not here";
    ASSERT_EQ(set_.input_ids.size(), 2u);
    ASSERT_EQ(set_.input_ids[0].size(), 257u);
  }

  v1::ScoreRequest ScoreRow(size_t row) const {
    v1::ScoreRequest request;
    *request.mutable_token_ids() = ToMessage(set_.input_ids[row]);
    return request;
  }
  v1::GenerateRequest GenerateRow(size_t row) const {
    return GreedyRequest(set_.input_ids[row], static_cast<int>(set_.continuation[row].size()));
  }
  // Long enough to meet all the others.
  v1::GenerateRequest RandomRequest(std::mt19937_64* random) const {
    std::mt19937_64& rng = *random;
    std::vector<int32_t> prompt(1 + rng() % 150);
    for (int32_t& token : prompt) {
      token = static_cast<int32_t>(rng() % set_.logprobs[0][0].size());
    }
    v1::GenerateRequest request = GreedyRequest(prompt, static_cast<int>(40 + rng() % 40));
    v1::SamplingOptions& sampling = *request.mutable_sampling();
    sampling.set_temperature(static_cast<float>(rng() % 3) * 0.7f);
    sampling.set_seed(rng());
    if (rng() % 2 == 0) sampling.set_top_p(0.9f);
    if (rng() % 2 == 0) sampling.set_top_k(static_cast<uint32_t>(1 + rng() % 20));
    if (rng() % 2 == 0) request.mutable_response()->set_prompt_logprobs(true);
    return request;
  }

  void ExpectRow(size_t row, const v1::ScoreResponse& answer) const {
    const auto& ids = set_.input_ids[row];
    ASSERT_EQ(answer.logprobs_size(), static_cast<int>(ids.size()));
    EXPECT_FALSE(answer.logprobs(0).has_logprob());  // nothing predicts it
    double sum = 0;
    for (size_t i = 1; i < ids.size(); ++i) {
      const v1::TokenLogprob& report = answer.logprobs(static_cast<int>(i));
      ASSERT_EQ(report.token_id(), static_cast<uint32_t>(ids[i]));
      const double expected = set_.logprobs[row][i - 1][static_cast<size_t>(ids[i])];
      ASSERT_NEAR(report.logprob(), expected, kLogprobTolerance) << "row " << row << " token " << i;
      sum += report.logprob();
    }
    EXPECT_EQ(answer.scored_tokens(), ids.size() - 1);
    EXPECT_NEAR(answer.sum_logprob(), sum, 1e-6 * std::abs(sum));
  }
  void ExpectContinuation(size_t row, const v1::GenerateResponse& answer) const {
    EXPECT_EQ(IdsOf(answer), set_.continuation[row]) << "row " << row;
  }

  // Both rows, scored and continued, while `kOthers` random requests run.
  void ExpectRowsInCompany(RealServer* server, std::mt19937_64* random) const {
    constexpr int kRowCalls = 4;
    Calls calls(&(*server)->generation(), kRowCalls + kOthers);
    std::vector<const v1::ScoreResponse*> scores;
    std::vector<const v1::GenerateResponse*> continuations, others;
    // The first one holds the engine at the gate until all the others wait behind it.
    server->gate().Close();
    others.push_back(calls.Generate(RandomRequest(random)));
    server->gate().AwaitBlocked();
    for (int i = 1; i < kOthers / 2; ++i) others.push_back(calls.Generate(RandomRequest(random)));
    for (size_t row : {0, 1}) scores.push_back(calls.Score(ScoreRow(row)));
    for (size_t row : {0, 1}) continuations.push_back(calls.Generate(GenerateRow(row)));
    while (others.size() < kOthers) others.push_back(calls.Generate(RandomRequest(random)));
    while ((*server)->Status().loads(0).waiting_requests() < kRowCalls + kOthers - 1) {
      std::this_thread::yield();
    }
    server->gate().Open();
    ASSERT_EQ(calls.Await(), 0);
    for (size_t row : {0, 1}) {
      ExpectRow(row, *scores[row]);
      ExpectContinuation(row, *continuations[row]);
    }
    for (const v1::GenerateResponse* other : others) EXPECT_GE(IdsOf(*other).size(), 40u);
  }

  GoldenSet set_;
};

TEST_P(GoldenRpc, AnswersAsTheReferenceAlsoInASlotThatWasUsed) {
  RealServer server(set_.dir, /*slots=*/1, /*rows_per_step=*/0);
  for (size_t row : {0, 1}) {
    v1::ScoreResponse scored;
    ASSERT_TRUE(server->Score(ScoreRow(row), &scored).ok());
    ExpectRow(row, scored);
    v1::GenerateResponse continued;
    ASSERT_TRUE(server->Generate(GenerateRow(row), &continued).ok());
    ExpectContinuation(row, continued);
    const StreamResult streamed = ReadStream(&server->generation(), GenerateRow(row));
    EXPECT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    EXPECT_EQ(streamed.num_tokens, static_cast<int>(set_.continuation[row].size()));
  }
}

TEST_P(GoldenRpc, AnswersAsTheReferenceAmongFourteenOthers) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  RealServer server(set_.dir, /*slots=*/20, /*rows_per_step=*/0);
  ExpectRowsInCompany(&server, &random);
  // All 18 were fed by one step, but for those that read their prompt in another.
  EXPECT_GE(server.most_in_a_step(), kOthers);
  ExpectRowsInCompany(&server, &random);  // and now all slots were used before
}

TEST_P(GoldenRpc, AnswersAsTheReferenceWithTheFewestRowsPerStep) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  RealServer server(set_.dir, /*slots=*/6, /*rows_per_step=*/64);
  // More calls than slots: all of them wait in line and every slot is used again.
  ExpectRowsInCompany(&server, &random);
  EXPECT_EQ(server.most_in_a_step(), 6);
}

INSTANTIATE_TEST_SUITE_P(Sets, GoldenRpc,
                         ::testing::Values("delta_net_a", "gated_deltanet_a", "kaczmarz_a"),
                         [](const auto& set) { return std::string(set.param); });

}  // namespace
}  // namespace eddy
