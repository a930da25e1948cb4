// Proves that models with softmax layers run on slots and pages at once: windows live in rings of
// pages for longer than a ring is; checkpoints carry keys and values to pages of another size; and
// numbers that are lost in a page are found there. Crowds: mixed_models_test.cc. In debug builds
// the pages of every new sequence are full of NaN, so a page in two hands, or one read before it
// was written, shows in every answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/kv_pages.h"
#include "tests/engine/mixed_models.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

class Hybrid : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = testing::OpenTestDevice();
  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
};

TEST_F(Hybrid, WindowsLiveInARingForLongerThanItIs) {
  SCOPED_TRACE(seed_);
  const RandomModel model(Windowed().config, seed_);
  ModelRunner ring(model.path(), {.slots = 3, .rows = 7, .rows_per_page = 4}, device_.get());
  // The last 21 - 1 + 7 positions lie on eight pages of four at most.
  EXPECT_EQ(ring.capacity().pages_per_sequence, 8);
  EXPECT_EQ(ring.capacity().pages, 3 * 8);
  EXPECT_EQ(ring.info().max_positions, 0);
  // A step that holds everything needs no ring.
  ModelRunner whole(model.path(), {.slots = 1, .rows = 1000, .rows_per_page = 64}, device_.get());
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i)
    requests.push_back(Ask(RandomPrompt(1 + random_() % 300, random_), 40));
  const std::vector<Answer> answers = ring.Run(requests);
  int ties = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(answers[i], whole.Run(requests[i]), &ties));
  }
  EXPECT_LE(ties, 1);
}

TEST_F(Hybrid, ACheckpointGoesOnInPagesOfAnotherSize) {
  for (const Mix& mix : {GptWithDelta(), GptWithKalman(), Windowed()}) {
    SCOPED_TRACE(::testing::Message() << mix.name << ", seed " << seed_);
    const RandomModel model(mix.config, seed_);
    ModelRunner here(model.path(), {.slots = 2, .rows = 9, .rows_per_page = 4}, device_.get());
    ModelRunner there(model.path(), {.slots = 3, .rows = 50, .rows_per_page = 16}, device_.get());
    const std::vector<int32_t> prompt = RandomPrompt(61, random_);
    const Answer whole = there.Run(Ask(prompt, 30));
    Request first = Ask({prompt.begin(), prompt.begin() + 45}, 0);
    first.report.top = 0;
    first.keep_state = true;
    const Answer half = here.Run(first);
    ASSERT_NE(half.end.state, nullptr);
    EXPECT_EQ(half.end.state->position, 44);
    // Without a window all positions are kept, else those that a later row may read.
    const int64_t kept = here.info().max_positions > 0 ? 44 : 20;
    EXPECT_EQ(static_cast<int64_t>(half.end.state->kv.size()),
              kept * here.info().kv_bytes_per_token);
    Request second = Ask({prompt.begin() + 45, prompt.end()}, 30);
    second.start = half.end.state;
    // Twice at once: neither writes where the other reads.
    int ties = 0;
    for (ModelRunner* runner : {&here, &there}) {
      for (Answer& rest : runner->Run(std::vector<Request>{second, second})) {
        // The checkpoint's unfed token is no part of this prompt, so what is scored begins later.
        Answer expected = whole;
        expected.scored.erase(expected.scored.begin(), expected.scored.begin() + 44);
        ASSERT_NO_FATAL_FAILURE(ExpectSame(rest, expected, &ties));
      }
    }
    EXPECT_LE(ties, 4);  // the same tie in each
  }
}

TEST_F(Hybrid, FindsNumbersThatWereLostInAPage) {
  SCOPED_TRACE(seed_);
  const RandomModel model(GptWithDelta().config, seed_);
  ModelRunner runner(model.path(), {.slots = 2, .rows = 16, .rows_per_page = 8}, device_.get());
  Request keep = Ask(RandomPrompt(30, random_), 0);
  keep.report.top = 0;
  keep.keep_state = true;
  const Answer good = runner.Run(keep);
  // The second field of block 2, the second softmax layer: behind the two of the first, its keys.
  auto spoilt = std::make_shared<Checkpoint>(*good.end.state);
  const float infinity = INFINITY;
  const size_t field_bytes = 29 * 16 * sizeof(float);
  std::memcpy(spoilt->kv.data() + 3 * field_bytes + 100, &infinity, sizeof(infinity));
  Request victim = Greedy({}, 5), neighbour = Greedy({}, 5);
  victim.start = spoilt;
  neighbour.start = good.end.state;
  const std::vector<Answer> answers = runner.Run(std::vector<Request>{victim, neighbour});
  EXPECT_EQ(answers[0].end.why.code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(answers[0].end.not_finite.has_value());
  EXPECT_EQ(answers[0].end.not_finite->layer, 2);
  EXPECT_EQ(answers[0].end.not_finite->field, "v");
  EXPECT_EQ(answers[0].end.not_finite->position, 29);
  EXPECT_TRUE(answers[1].end.why.ok());
  EXPECT_EQ(runner.Run(neighbour).ids(), answers[1].ids());
}

TEST_F(Hybrid, TellsWhatPagesItHasAndWhatBoundsASequence) {
  const RandomModel model(GptWithDelta().config, 1);
  ModelRunner runner(model.path(), {.slots = 3, .rows = 16, .rows_per_page = 16}, device_.get());
  EXPECT_EQ(runner.info().max_positions, 512);
  EXPECT_EQ(runner.info().kv_bytes_per_token, 3 * 2 * 2 * 8 * 4);  // layers, fields, heads, d
  // Memory is plenty: as many pages as three sequences of 512 positions fill.
  EXPECT_EQ(runner.capacity().pages, 3 * 32);
  EXPECT_EQ(runner.capacity().rows_per_page, 16);
  EXPECT_EQ(runner.capacity().kv_bytes, (3 * 32 + 1) * 16 * runner.info().kv_bytes_per_token);
  const auto none = LoadModel({.model_dir = model.path(), .kv_fraction = 0}, device_.get());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("kv_fraction is 0, must be above 0"));
  const auto zero = LoadModel({.model_dir = model.path(), .kv_page_tokens = 0}, device_.get());
  EXPECT_THAT(std::string(zero.status().message()), HasSubstr("kv_page_tokens is 0"));
}

}  // namespace
}  // namespace eddy
