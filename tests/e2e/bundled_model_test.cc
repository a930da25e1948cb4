// Proves that the bundled model, served, says what the program that trained it said:
// models/kaczmarz-tales/reference.json holds a text, its tokens, the log-probability of each and
// the likeliest continuation, computed by PyTorch in float32 from the exported weights.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/model_files.h"
#include "tests/testing/real_server.h"

namespace eddy {
namespace {

constexpr char kModelDir[] = "models/kaczmarz-tales";
constexpr double kLogprobTolerance = 2e-3;
constexpr double kSumTolerance = 0.005;  // of the sum

class BundledModel : public ::testing::Test {
 protected:
  void SetUp() override {
    reference_ = nlohmann::json::parse(ReadFile(std::string(kModelDir) + "/reference.json"));
    ids_ = reference_["ids"].get<std::vector<int32_t>>();
    ASSERT_GT(ids_.size(), 200u);
  }

  void ExpectReference(const v1::ScoreResponse& answer) const {
    const auto& logprobs = reference_["logprobs"];
    ASSERT_EQ(answer.logprobs_size(), static_cast<int>(ids_.size()));
    ASSERT_EQ(logprobs.size(), ids_.size());
    EXPECT_FALSE(answer.logprobs(0).has_logprob());
    double sum = 0;
    for (size_t i = 1; i < ids_.size(); ++i) {
      const v1::TokenLogprob& report = answer.logprobs(static_cast<int>(i));
      ASSERT_EQ(report.token_id(), static_cast<uint32_t>(ids_[i])) << "token " << i;
      const auto expected = logprobs[i].get<double>();
      ASSERT_NEAR(report.logprob(), expected, kLogprobTolerance) << "token " << i;
      sum += expected;
    }
    EXPECT_EQ(answer.scored_tokens(), ids_.size() - 1);
    EXPECT_NEAR(answer.sum_logprob(), sum, kSumTolerance * std::abs(sum));
  }

  nlohmann::json reference_;
  std::vector<int32_t> ids_;
  RealServer server_{kModelDir, /*slots=*/2, /*rows_per_step=*/0};
};

TEST_F(BundledModel, ScoresTheReferenceTextAsPyTorchDoes) {
  v1::ScoreRequest request;
  request.set_text(reference_["text"].get<std::string>());
  v1::ScoreResponse answer;
  const grpc::Status status = server_->Score(request, &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectReference(answer);
}

TEST_F(BundledModel, ScoresTheReferenceTokensAsPyTorchDoes) {
  v1::ScoreRequest request;
  *request.mutable_token_ids() = ToMessage(ids_);
  v1::ScoreResponse answer;
  const grpc::Status status = server_->Score(request, &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectReference(answer);
}

TEST_F(BundledModel, ContinuesTheReferenceTextAsPyTorchDoes) {
  const auto continuation = reference_["greedy_continuation"].get<std::vector<int32_t>>();
  ASSERT_FALSE(continuation.empty());
  v1::GenerateResponse answer;
  const grpc::Status status =
      server_->Generate(GreedyRequest(ids_, static_cast<int>(continuation.size())), &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(IdsOf(answer), continuation);
  EXPECT_FALSE(answer.outputs(0).text().empty());
}

}  // namespace
}  // namespace eddy
