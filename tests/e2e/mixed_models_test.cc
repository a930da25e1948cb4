// Proves, over gRPC, that models of many kinds of layers keep their calls apart: a crowd of 64
// streams with room for twenty gets what each gets alone, and a call whose numbers are lost in the
// model ends alone, with the words of the error table, and is counted. Closer, and without a
// server: tests/engine/mixed_models_test.cc.
#include "tests/engine/mixed_models.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/testing/get_metrics.h"
#include "tests/testing/real_server.h"
#include "tests/testing/stream_client.h"

namespace eddy {
namespace {

constexpr int kCrowd = 64, kRunning = 20;

class MixedModelsRpc : public ::testing::TestWithParam<Mix> {
 protected:
  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
};

TEST_P(MixedModelsRpc, AnswerSixtyFourStreamsAsIfEachWereAlone) {
  SCOPED_TRACE(seed_);
  const RandomModel model(GetParam().config, seed_);
  RealServer server(model.path(), kRunning, /*rows_per_step=*/64);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < kCrowd; ++i) {
    requests.push_back(GreedyRequest(RandomPrompt(1 + random_() % 30, random_), 12));
  }
  server.gate().Close();
  std::vector<StreamResult> results(kCrowd);
  std::vector<std::thread> streams;
  for (size_t i = 0; i < kCrowd; ++i) {
    streams.emplace_back([&, i] { results[i] = ReadStream(&server->generation(), requests[i]); });
  }
  server.gate().AwaitBlocked();
  while (server->Status().loads(0).waiting_requests() < kCrowd - kRunning) {
    std::this_thread::yield();
  }
  server.gate().Open();
  for (std::thread& stream : streams) stream.join();
  EXPECT_EQ(server.most_in_a_step(), kRunning);
  int others = 0;
  for (size_t i = 0; i < kCrowd; ++i) {
    ASSERT_TRUE(results[i].status.ok()) << results[i].status.error_message();
    ASSERT_EQ(results[i].token_ids.size(), 12u);
    if (results[i].token_ids != ReadStream(&server->generation(), requests[i]).token_ids) ++others;
  }
  // Where the two likeliest tokens are as good as equal, rounding decides.
  EXPECT_LE(others, 2);
}

INSTANTIATE_TEST_SUITE_P(Mixes, MixedModelsRpc,
                         ::testing::Values(GptWithKalman(), Windowed(), AllDeltas(), AllScans()),
                         [](const auto& mix) { return std::string(mix.param.name); });

TEST(LostNumbers, EndTheirCallAloneAndAreCounted) {
  const RandomModel model(GptWithKalman().config, 1, OverflowIn(4));
  RealServer server(model.path(), /*slots=*/3, /*rows_per_step=*/64);
  v1::GenerateRequest good = GreedyRequest({5, 6, 7, 8}, 10);
  good.mutable_decoding()->add_banned_token_ids(kOverflowToken);
  const std::vector<int32_t> alone = ReadStream(&server->generation(), good).token_ids;
  ASSERT_EQ(alone.size(), 10u);
  StreamResult neighbour;
  server.gate().Close();
  std::thread stream([&] { neighbour = ReadStream(&server->generation(), good); });
  server.gate().AwaitBlocked();
  StreamResult lost;
  std::thread victim([&] {
    lost = ReadStream(&server->generation(), GreedyRequest({5, 6, kOverflowToken}, 10));
  });
  while (server->Status().loads(0).waiting_requests() == 0) std::this_thread::yield();
  server.gate().Open();
  victim.join();
  stream.join();
  EXPECT_EQ(lost.status.error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(ReasonOf(lost.status), "STATE_NOT_FINITE");
  const auto info = DetailOf<google::rpc::ErrorInfo>(lost.status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->metadata().at("layer"), "8");          // the last mixer; each layer has an MLP
  EXPECT_EQ(info->metadata().at("field"), "precision");  // the first of those that are lost
  EXPECT_EQ(info->metadata().at("position"), "2");
  EXPECT_EQ(neighbour.token_ids, alone);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ReadStream(&server->generation(), good).token_ids, alone);
  const std::string page = GetMetrics(server->server().ports().metrics_listen);
  EXPECT_NE(page.find("\neddy_state_nonfinite_total{model_name=\"real\"} 1\n"), std::string::npos);
}

}  // namespace
}  // namespace eddy
