// Proves that a sequence which goes on from a record that is spoilt harms nobody else, whatever
// layers the model has: with numbers that are none, or with a record of random bits, it ends by
// itself or writes nonsense, while those beside it, who go on from good records, get the same bits
// as without it, and so does whoever has its slot next. All of them have one row in each step,
// which a device that records steps plays back. See test_device.h for the device.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/blueprint.h"
#include "kernels/state_layout.h"
#include "tests/engine/mixed_models.h"
#include "tests/testing/test_device.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

constexpr int kTokens = 24;

class SpoiltRecords : public ::testing::TestWithParam<Mix> {
 protected:
  // Reads on from a checkpoint.
  static Request From(std::shared_ptr<const Checkpoint> start) {
    Request request = Greedy({}, kTokens);
    request.start = std::move(start);
    return request;
  }
  std::shared_ptr<const Checkpoint> Good(ModelRunner* runner) {
    Request request = Greedy(RandomPrompt(30 + random_() % 20, random_), 3);
    request.keep_state = true;
    return runner->Run(std::move(request)).end.state;
  }
  // One number that is none, somewhere in a field or in what is kept of pages.
  std::shared_ptr<Checkpoint> WithALostNumber(const Checkpoint& good) {
    auto spoilt = std::make_shared<Checkpoint>(good);
    const float lost[] = {NAN, -NAN, INFINITY, -INFINITY};
    const bool in_pages = !good.kv.empty() && random_() % 2 == 0;
    std::vector<std::byte>& bytes = in_pages ? spoilt->kv : spoilt->record;
    // What lies between the fields is nobody's; several, so that one of them counts.
    for (int i = 0; i < 40; ++i) {
      std::memcpy(&bytes[random_() % (bytes.size() / 4) * 4], &lost[random_() % 4], 4);
    }
    return spoilt;
  }
  std::shared_ptr<Checkpoint> OfRandomBits(const Checkpoint& good) {
    auto spoilt = std::make_shared<Checkpoint>(good);
    for (std::vector<std::byte>* bytes : {&spoilt->record, &spoilt->kv}) {
      for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random_());
    }
    return spoilt;
  }
  // Of all sizes that a float has, and all of them numbers.
  std::shared_ptr<Checkpoint> OfHugeNumbers(const Checkpoint& good) {
    auto spoilt = std::make_shared<Checkpoint>(good);
    for (size_t at = 0; at + 4 <= spoilt->record.size(); at += 4) {
      const float huge =
          std::ldexp(random_() % 2 == 0 ? 1.5f : -1.5f, static_cast<int>(random_() % 250) - 125);
      std::memcpy(&spoilt->record[at], &huge, 4);
    }
    return spoilt;
  }

  static void ExpectSameBits(const Answer& got, const Answer& want) {
    EXPECT_TRUE(got.end.why.ok()) << got.end.why;
    EXPECT_EQ(got.ids(), want.ids());
    ASSERT_EQ(got.tokens.size(), want.tokens.size());
    for (size_t i = 0; i < want.tokens.size(); ++i) {
      EXPECT_EQ(got.tokens[i].logprob, want.tokens[i].logprob) << "token " << i;
    }
  }

  const std::unique_ptr<Device> device_ = testing::OpenTestDevice();
  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
};

TEST_P(SpoiltRecords, HarmNobodyElse) {
  SCOPED_TRACE(seed_);
  const RandomModel model(GetParam().config, seed_);
  ModelRunner runner(model.path(), {.slots = 5, .rows = 64, .rows_per_page = 8}, device_.get());
  std::vector<std::shared_ptr<const Checkpoint>> good;
  std::vector<Answer> alone;
  for (int i = 0; i < 3; ++i) {
    good.push_back(Good(&runner));
    ASSERT_NE(good.back(), nullptr);
    alone.push_back(runner.Run(From(good.back())));
    ASSERT_EQ(alone.back().tokens.size(), static_cast<size_t>(kTokens));
  }
  int lost = 0;
  for (const int trial : testing::Trials(9)) {
    SCOPED_TRACE(::testing::Message() << "trial " << trial);
    std::shared_ptr<Checkpoint> spoilt;
    if (trial % 3 == 0) spoilt = WithALostNumber(*good[0]);
    if (trial % 3 == 1) spoilt = OfRandomBits(*good[1]);
    if (trial % 3 == 2) spoilt = OfHugeNumbers(*good[2]);
    const std::vector<Answer> answers = runner.Run(std::vector<Request>{
        From(good[0]), From(spoilt), From(good[1]), From(spoilt), From(good[2])});
    for (size_t i = 0; i < 3; ++i) ExpectSameBits(answers[2 * i], alone[i]);
    for (const size_t i : {1, 3}) {
      const absl::Status& why = answers[i].end.why;
      EXPECT_TRUE(why.ok() || why.code() == absl::StatusCode::kDataLoss) << why;
      if (!why.ok()) ++lost;
      for (const TokenReport& token : answers[i].tokens) EXPECT_TRUE(std::isfinite(token.logprob));
    }
    const std::vector<Answer> next = runner.Run(std::vector<Request>{
        From(good[0]), From(good[0]), From(good[0]), From(good[0]), From(good[0])});
    for (const Answer& answer : next) ExpectSameBits(answer, alone[0]);
  }
  EXPECT_GT(lost, 0);
}

INSTANTIATE_TEST_SUITE_P(Mixes, SpoiltRecords,
                         ::testing::Values(GptWithDelta(), GptWithKalman(), Windowed(),
                                           WindowedAndWhole(), AllDeltas(), AllScans(), Tiles()),
                         [](const auto& mix) { return std::string(mix.param.name); });

}  // namespace
}  // namespace eddy
