// Proves that a real model draws as it should where parameters are as small or great as the API
// lets them be: a temperature that is next to nothing is the greedy choice, whatever filter stands
// behind it, filters that leave one token are too, lists may name every token but one, and
// penalties and biases at their bounds, in one step with everything else, change nothing for a
// neighbour.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/testing/real_server.h"
#include "tests/testing/stream_client.h"

namespace eddy {
namespace {

constexpr uint32_t kVocab = 256;
constexpr int kTokens = 6;
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

class SamplingLimits : public ::testing::Test {
 protected:
  v1::GenerateRequest Request() {
    std::vector<int32_t> prompt(1);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random_() % kVocab);
    return GreedyRequest(prompt, kTokens);
  }
  std::vector<int32_t> Ids(const v1::GenerateRequest& request) {
    const StreamResult result = ReadStream(&server_->generation(), request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.token_ids.size(), static_cast<size_t>(kTokens));
    return result.token_ids;
  }
  // The same request at `temperature`, once behind each filter.
  static std::vector<v1::GenerateRequest> BehindEachFilter(const v1::GenerateRequest& greedy,
                                                           float temperature) {
    std::vector<v1::GenerateRequest> all(7, greedy);
    for (v1::GenerateRequest& request : all) {
      request.mutable_sampling()->set_temperature(temperature);
    }
    all[1].mutable_sampling()->set_top_k(5);
    all[2].mutable_sampling()->set_top_k(kVocab);
    all[3].mutable_sampling()->set_top_p(0.5f);
    all[4].mutable_sampling()->set_top_p(0.999999f);
    all[5].mutable_sampling()->set_min_p(0.5f);
    all[6].mutable_sampling()->set_typical_p(0.999f);
    return all;
  }

  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  RealServer server_{"tests/golden/kaczmarz_a", /*slots=*/16, /*rows_per_step=*/0};
};

TEST_F(SamplingLimits, ATemperatureNextToNothingIsTheGreedyChoice) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const v1::GenerateRequest greedy = Request();
  const std::vector<int32_t> likeliest = Ids(greedy);
  for (double power = -20; power >= -45; power -= 0.5) {
    const auto temperature = static_cast<float>(std::pow(10, power));
    const auto requests = BehindEachFilter(greedy, std::max(temperature, kTiny));
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(Ids(requests[i]), likeliest) << "10^" << power << ", filter " << i;
    }
  }
}

TEST_F(SamplingLimits, FiltersThatLeaveOneTokenAreTheGreedyChoice) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const float temperature : {0.01f, 1.0f, 10.0f}) {
    v1::GenerateRequest greedy = Request();
    const std::vector<int32_t> likeliest = Ids(greedy);
    greedy.mutable_sampling()->set_temperature(temperature);
    for (int filter = 0; filter < 4; ++filter) {
      v1::GenerateRequest request = greedy;
      v1::SamplingOptions* const sampling = request.mutable_sampling();
      if (filter == 0) sampling->set_top_k(1);
      if (filter == 1) sampling->set_top_p(kTiny);
      if (filter == 2) sampling->set_min_p(std::nextafter(1.0f, 0.0f));
      if (filter == 3) sampling->set_top_k(1), sampling->set_typical_p(kTiny);
      EXPECT_EQ(Ids(request), likeliest) << "temperature " << temperature << ", filter " << filter;
    }
  }
}

TEST_F(SamplingLimits, ListsMayNameEveryTokenButOne) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const uint32_t only = random_() % kVocab;
  const std::vector<int32_t> expected(kTokens, static_cast<int32_t>(only));
  v1::GenerateRequest banned = Request(), allowed = Request();
  for (uint32_t token = 0; token < kVocab; ++token) {
    if (token != only) banned.mutable_decoding()->add_banned_token_ids(token);
  }
  for (int i = 0; i < 1000; ++i) allowed.mutable_decoding()->add_allowed_token_ids(only);
  for (const v1::GenerateRequest& request : {banned, allowed}) {
    for (const float temperature : {0.0f, kTiny, 1.0f, 10.0f}) {
      for (const v1::GenerateRequest& filtered : BehindEachFilter(request, temperature)) {
        EXPECT_EQ(Ids(filtered), expected) << filtered.sampling().ShortDebugString();
      }
    }
  }
}

TEST_F(SamplingLimits, WhoeverAsksForMuchChangesNothingForANeighbour) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  v1::GenerateRequest neighbour = Request();
  neighbour.mutable_sampling()->set_temperature(1);
  neighbour.mutable_sampling()->set_seed(std::numeric_limits<uint64_t>::max());
  neighbour.mutable_response()->set_logprobs(true);
  const StreamResult alone = ReadStream(&server_->generation(), neighbour);
  std::vector<v1::GenerateRequest> requests = {neighbour};
  for (int i = 0; i < 14; ++i) {
    v1::GenerateRequest request = Request();
    v1::DecodingOptions& decoding = *request.mutable_decoding();
    decoding.set_repetition_penalty(i % 2 == 0 ? 10 : 0.1f);
    decoding.set_frequency_penalty(i % 3 == 0 ? 2 : -2);
    decoding.set_presence_penalty(i % 4 == 0 ? 2 : -2);
    for (uint32_t token = 0; token < kVocab; ++token) {
      (*decoding.mutable_logit_bias())[token] = random_() % 2 == 0 ? 100 : -100;
      if (token > 0 && i % 5 == 0) decoding.add_banned_token_ids(token);
    }
    request.mutable_sampling()->set_temperature(i % 3 == 0 ? kTiny : 10);
    request.mutable_sampling()->set_seed(0);
    if (i % 2 == 0) request.mutable_sampling()->set_typical_p(kTiny);
    request.mutable_stopping()->set_min_new_tokens(kTokens);
    request.mutable_response()->set_logprobs(true);
    request.mutable_response()->set_top_logprobs(20);
    requests.push_back(std::move(request));
  }
  server_.gate().Close();
  Countdown done(static_cast<int>(requests.size()));
  std::vector<std::unique_ptr<StreamClient>> clients;
  for (const v1::GenerateRequest& request : requests) {
    clients.push_back(
        std::make_unique<StreamClient>(&server_->generation(), request, -1, [&] { done.Tick(); }));
  }
  while (server_->server().open_calls() < static_cast<int>(requests.size())) {
    std::this_thread::yield();
  }
  server_.gate().Open();
  done.Await();
  for (size_t i = 0; i < clients.size(); ++i) {
    const StreamResult& result = clients[i]->result();
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    ASSERT_EQ(result.logprobs.size(), static_cast<size_t>(kTokens));
    for (const float logprob : result.logprobs) EXPECT_TRUE(std::isfinite(logprob));
  }
  EXPECT_EQ(clients[0]->result().token_ids, alone.token_ids);
  EXPECT_EQ(clients[0]->result().logprobs, alone.logprobs);
}

}  // namespace
}  // namespace eddy
