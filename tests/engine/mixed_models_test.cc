// Proves that models of many kinds of layers keep their sequences apart. A crowd of 64 with pages
// or slots for twenty: the others wait, all end in the order in which they came, each says what it
// says alone, and everything is free afterwards. And numbers that are lost in any one layer end the
// one sequence in which it happened, by name, while not a bit of the others changes if their
// prompts are fed in the same pieces, and only last digits if not. In debug builds pages and freed
// slots are full of NaN, so one in two hands, or read before it was written, shows in every answer.
#include "tests/engine/mixed_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/blueprint.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

constexpr int kCrowd = 64, kRunning = 20;
// Of log-probabilities about -7: 1e-5 of each.
constexpr double kRounding = 7e-5;

bool HasField(const LayerNeeds& needs, const std::string& name) {
  const auto named = [&](const Field& field) { return field.name == name; };
  return std::any_of(needs.state.begin(), needs.state.end(), named) ||
         std::any_of(needs.kv.begin(), needs.kv.end(), named);
}

void ExpectSameBits(const Answer& got, const Answer& want) {
  EXPECT_TRUE(got.end.why.ok()) << got.end.why;
  EXPECT_EQ(got.ids(), want.ids());
  ASSERT_EQ(got.scored.size(), want.scored.size());
  for (size_t i = 0; i < want.scored.size(); ++i) {
    EXPECT_EQ(got.scored[i].logprob, want.scored[i].logprob) << "prompt token " << i;
  }
  ASSERT_EQ(got.tokens.size(), want.tokens.size());
  for (size_t i = 0; i < want.tokens.size(); ++i) {
    EXPECT_EQ(got.tokens[i].logprob, want.tokens[i].logprob) << "token " << i;
  }
}

class MixedModels : public ::testing::TestWithParam<Mix> {
 protected:
  // Room for twenty sequences of 33 to 40 positions, which is five pages.
  static ModelRunner::Size RoomForTwenty(bool pages) {
    if (!pages) return {.slots = kRunning, .rows = 70};
    return {.slots = kCrowd, .rows = 70, .pages = kRunning * 5, .rows_per_page = 8};
  }
  std::vector<Request> Crowd(bool alike) {
    std::vector<Request> requests;
    for (int i = 0; i < kCrowd; ++i) {
      const size_t prompt = alike ? 25 : 1 + random_() % 32;
      const auto answer = static_cast<int>(33 + (alike ? 7 : random_() % 8) - prompt);
      requests.push_back(Ask(RandomPrompt(prompt, random_), answer));
    }
    return requests;
  }

  // Two that have nothing to do with kOverflowToken.
  std::vector<Request> Neighbours() {
    std::vector<Request> others;
    for (int i = 0; i < 2; ++i) {
      others.push_back(Ask(HarmlessPrompt(1 + random_() % 20, random_), 12));
      others.back().sampling.banned = {kOverflowToken};
    }
    return others;
  }
  // One that has it somewhere in its prompt, but not at its beginning.
  Request Victim() {
    Request victim = Ask(HarmlessPrompt(12, random_), 8);
    victim.prompt[1 + random_() % 11] = kOverflowToken;
    return victim;
  }
  static int64_t LostAt(const Request& victim) {
    const auto found = std::find(victim.prompt.begin(), victim.prompt.end(), kOverflowToken);
    return found - victim.prompt.begin();
  }

  std::unique_ptr<Device> device_ = testing::OpenTestDevice();
  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
};

TEST_P(MixedModels, SixtyFourSequencesWithRoomForTwentyEndAsIfEachWereAlone) {
  SCOPED_TRACE(seed_);
  const RandomModel model(GetParam().config, seed_);
  ModelRunner alone(model.path(), {.slots = 1, .rows = 200}, device_.get());
  ModelRunner crowd(model.path(), RoomForTwenty(alone.capacity().pages > 0), device_.get());
  const std::vector<Request> requests = Crowd(/*alike=*/false);
  const std::vector<Answer> answers = crowd.Run(requests);
  EXPECT_EQ(crowd.most_running(), kRunning);
  int ties = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(answers[i], alone.Run(requests[i]), &ties));
    EXPECT_GE(answers[i].admitted, answers[i - std::min<size_t>(i, 1)].admitted);
  }
  EXPECT_LE(ties, 2);
}

TEST_P(MixedModels, EndInTheOrderInWhichTheyCameIfTheyAreAlike) {
  SCOPED_TRACE(seed_);
  const RandomModel model(GetParam().config, seed_);
  const bool pages = ModelRunner(model.path(), {}, device_.get()).capacity().pages > 0;
  ModelRunner crowd(model.path(), RoomForTwenty(pages), device_.get());
  const std::vector<Answer> answers = crowd.Run(Crowd(/*alike=*/true));
  EXPECT_EQ(crowd.most_running(), kRunning);
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].end.why.ok()) << answers[i].end.why;
    EXPECT_GE(answers[i].ended, answers[i - std::min<size_t>(i, 1)].ended) << i;
    // Nobody waits longer than those before him run.
    const int room = i < kRunning ? 0 : answers[i - kRunning].ended;
    EXPECT_EQ(answers[i].admitted, room + 1) << i;
  }
}

// Steps with room for all prompts at once, so that the neighbours' are fed alike with and without
// the one that is lost.
TEST_P(MixedModels, LoseTheNumbersOfOneSequenceAloneInWhicheverLayerItIs) {
  SCOPED_TRACE(seed_);
  const size_t layers = GetParam().config["layers"].size();
  for (size_t layer = 0; layer < layers; ++layer) {
    SCOPED_TRACE(::testing::Message() << "layer " << layer);
    const RandomModel model(GetParam().config, seed_, OverflowIn(layer));
    ModelRunner runner(model.path(), {.slots = 3, .rows = 64, .rows_per_page = 8}, device_.get());
    const std::vector<Request> others = Neighbours();
    const std::vector<Answer> without = runner.Run(others);
    const Request victim = Victim();
    const std::vector<Answer> with = runner.Run(std::vector<Request>{others[0], victim, others[1]});
    const End& end = with[1].end;
    EXPECT_EQ(end.why.code(), absl::StatusCode::kDataLoss);
    ASSERT_TRUE(end.not_finite.has_value());
    // Each layer is a mixer and an MLP.
    EXPECT_EQ(end.not_finite->layer, static_cast<int>(2 * layer));
    EXPECT_EQ(end.not_finite->position, LostAt(victim));
    const Blueprint blueprint = MakeBlueprint(*ReadModelConfig(model.path()), device_->traits());
    EXPECT_TRUE(HasField(blueprint.needs[2 * layer], end.not_finite->field))
        << end.not_finite->field;
    EXPECT_THAT(std::string(end.why.message()), HasSubstr(end.not_finite->field));
    EXPECT_TRUE(with[1].tokens.empty());
    ExpectSameBits(with[0], without[0]);
    ExpectSameBits(with[2], without[1]);
    // All slots and pages work again, that of the victim too.
    const std::vector<Answer> again = runner.Run(std::vector<Request>(3, others[0]));
    for (const Answer& answer : again) EXPECT_TRUE(answer.end.why.ok()) << answer.end.why;
  }
}

// In full steps the prompts beside a lost sequence are cut elsewhere than without it, which changes
// their numbers by rounding and no token.
TEST_P(MixedModels, KeepTheNeighboursOfALostSequenceUpToRoundingInFullSteps) {
  SCOPED_TRACE(seed_);
  const size_t layers = GetParam().config["layers"].size();
  int ties = 0;
  for (size_t layer = 0; layer < layers; ++layer) {
    const RandomModel model(GetParam().config, seed_, OverflowIn(layer));
    for (const int rows : {8, 40}) {
      SCOPED_TRACE(::testing::Message() << "layer " << layer << ", " << rows << " rows per step");
      ModelRunner runner(model.path(), {.slots = 3, .rows = rows, .rows_per_page = 8},
                         device_.get());
      const std::vector<Request> others = Neighbours();
      const std::vector<Answer> without = runner.Run(others);
      const Request victim = Victim();
      const std::vector<Answer> with =
          runner.Run(std::vector<Request>{victim, others[0], others[1]});
      ASSERT_TRUE(with[0].end.not_finite.has_value());
      EXPECT_EQ(with[0].end.not_finite->layer, static_cast<int>(2 * layer));
      EXPECT_EQ(with[0].end.not_finite->position, LostAt(victim));
      for (size_t i = 0; i < others.size(); ++i) {
        ASSERT_NO_FATAL_FAILURE(ExpectSame(with[i + 1], without[i], &ties, kRounding));
      }
    }
  }
  EXPECT_LE(ties, 1);
}

INSTANTIATE_TEST_SUITE_P(Mixes, MixedModels,
                         ::testing::Values(GptWithDelta(), GptWithKalman(), Windowed(),
                                           WindowedAndWhole(), AllDeltas(), AllScans()),
                         [](const auto& mix) { return std::string(mix.param.name); });

}  // namespace
}  // namespace eddy
