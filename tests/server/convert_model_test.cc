// Proves what clients are told of the model and of the server.
#include "server/convert_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/time/clock.h"
#include "server/text/byte_tokenizer.h"

namespace eddy {
namespace {

class ConvertModelTest : public ::testing::Test {
 protected:
  ConvertModelTest() {
    model_.name = "tiny";
    model_.info.vocab_size = 300;
    model_.tokenizer = std::make_unique<ByteTokenizer>(300, std::nullopt);
  }

  ServedModel model_;
};

TEST_F(ConvertModelTest, DescribesTheModel) {
  model_.info.model_type = "kaczmarz_gated_deltanet";
  model_.info.layers = {{"delta", 4}};
  model_.info.bos_token = 1;
  model_.info.eos_tokens = {2};
  model_.info.weight_type = "bfloat16";
  model_.info.state_type = "float32";
  model_.info.fingerprint[31] = 9;
  model_.capacity.slots = 16;
  const v1::Model model = ToModel(model_);
  EXPECT_EQ(model.name(), "tiny");
  EXPECT_EQ(model.layers(0).type(), "delta");
  EXPECT_EQ(model.layers(0).count(), 4u);
  EXPECT_EQ(model.bos_token_id(), 1u);
  EXPECT_EQ(model.weight_type(), v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(model.state_type(), v1::DATA_TYPE_FLOAT32);
  EXPECT_EQ(model.fingerprint().size(), 32u);
  EXPECT_EQ(model.fingerprint()[31], 9);
  EXPECT_EQ(model.limits().max_sequences(), 16u);
  EXPECT_EQ(model.limits().max_new_tokens(), 8192u);
  EXPECT_EQ(model.features_size(), 1);
  EXPECT_EQ(model.features(0), v1::FEATURE_TEXT);
  EXPECT_EQ(model.default_stopping().max_new_tokens(), 256u);
}

TEST_F(ConvertModelTest, ListsWhatTheLayersMakePossible) {
  model_.info.record_bytes = 4096;
  model_.info.kalman_readouts = true;
  const v1::Model model = ToModel(model_);
  EXPECT_THAT(model.features(),
              ::testing::ElementsAre(v1::FEATURE_TEXT, v1::FEATURE_KALMAN_UNCERTAINTY,
                                     v1::FEATURE_STATE_STATS));
}

TEST_F(ConvertModelTest, TellsTheServersStateWhileItLoads) {
  const v1::GetServerStatusResponse status =
      ToServerStatus(Lifecycle::State::kStarting, absl::FromUnixMillis(1500), absl::Now(), nullptr);
  EXPECT_EQ(status.state(), v1::SERVER_STATE_STARTING);
  EXPECT_EQ(status.start_time().seconds(), 1);
  EXPECT_EQ(status.start_time().nanos(), 500000000);
  EXPECT_FALSE(status.version().empty());
  EXPECT_EQ(status.loads_size(), 0);
}

}  // namespace
}  // namespace eddy
