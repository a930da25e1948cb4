// Models of many kinds of layers in eddy's own form, and how answers of one request compare: for
// tests of what happens between layers, and between sequences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/model_runner.h"
#include "tests/engine/random_model.h"

namespace eddy {

inline nlohmann::json LayerOf(nlohmann::json mixer, const nlohmann::json& more) {
  mixer.update(more);
  return {{"mixer", std::move(mixer)}, {"mlp", {{"type", "swiglu"}, {"size", 48}}}};
}

inline nlohmann::json AttentionLayer(const nlohmann::json& more = nlohmann::json::object()) {
  return LayerOf({{"type", "attention"}, {"heads", 4}, {"head_dim", 8}, {"kv_heads", 2}}, more);
}
// Gated DeltaNet, unless `more` makes it another.
inline nlohmann::json DeltaLayer(const nlohmann::json& more = nlohmann::json::object()) {
  return LayerOf({{"type", "delta"},
                  {"heads", 2},
                  {"key_dim", 8},
                  {"value_dim", 16},
                  {"decay", "head"},
                  {"step", "sigmoid"},
                  {"gate", "silu"}},
                 more);
}
inline nlohmann::json KalmanLayer(const nlohmann::json& more = nlohmann::json::object()) {
  return LayerOf({{"type", "kalman"}, {"channels", 24}, {"state_dim", 4}}, more);
}

struct Mix {
  const char* name;
  nlohmann::json config;
};

// Three softmax layers, a recurrent one at the end.
inline Mix GptWithDelta() {
  nlohmann::json config =
      NativeConfig({AttentionLayer(), AttentionLayer(), AttentionLayer(), DeltaLayer()});
  config["max_positions"] = 512;
  return {"gpt_with_delta", std::move(config)};
}
// The same with filters, one amid the softmax layers and one at the end.
inline Mix GptWithKalman() {
  nlohmann::json config =
      NativeConfig({AttentionLayer(), AttentionLayer(), KalmanLayer({{"value_rank", "conv"}}),
                    AttentionLayer(), KalmanLayer({{"skip", "channel"}, {"prior", "learned"}})});
  config["max_positions"] = 512;
  return {"gpt_with_kalman", std::move(config)};
}
// Windows of two sizes.
inline Mix Windowed() {
  return {"windowed",
          NativeConfig({DeltaLayer(), AttentionLayer({{"window", 9}}), DeltaLayer(),
                        AttentionLayer({{"window", 21}, {"bias", true}, {"rope_theta", 500}})})};
}
// A window beside a layer that reads all.
inline Mix WindowedAndWhole() {
  nlohmann::json config =
      NativeConfig({AttentionLayer({{"window", 5}}), DeltaLayer(), AttentionLayer()});
  config["max_positions"] = 300;
  return {"windowed_and_whole", std::move(config)};
}

// Twelve layers: every family of type "delta".
inline Mix AllDeltas() {
  const nlohmann::json kda = {
      {"decay", "channel"}, {"decay_rank", 5}, {"gate", "sigmoid"}, {"gate_rank", 3}};
  const nlohmann::json by_length = {{"key_norm", "none"}, {"step_eps", 1e-6}};
  const auto with = [](nlohmann::json base, const nlohmann::json& more) {
    base.update(more);
    return base;
  };
  const auto scaled = [&](const nlohmann::json& base, const nlohmann::json& more) {
    const nlohmann::json scale = {{"gradient", "beta_aware"},
                                  {"eta", 0.5},
                                  {"normalise", false},
                                  {"clip", {0.5, 2}},
                                  {"retention", "none"}};
    return with(base, {{"scale", with(scale, more)}});
  };
  const nlohmann::json plain = {{"decay", "none"}, {"gate", "none"}};
  return {"all_deltas",
          NativeConfig({
              DeltaLayer(plain),
              DeltaLayer(with(plain, {{"step_max", 2}, {"qk_activation", "elu"}})),
              DeltaLayer({{"value_heads", 6}, {"conv_width", 2}}),
              DeltaLayer(with(kda, {{"key_dim", 7}, {"value_dim", 9}})),
              DeltaLayer(with(kda, {{"decay_bound", -5}, {"value_heads", 4}})),
              DeltaLayer(with(by_length, {{"step", "kaczmarz"}, {"step_bias", true}})),
              DeltaLayer(with(by_length, {{"step", "kaczmarz_full"}, {"value_heads", 4}})),
              DeltaLayer(with(by_length, {{"step", "kaczmarz_learned"}})),
              DeltaLayer(scaled(plain, {{"gradient", "beta_unaware"}})),
              DeltaLayer(scaled({{"value_heads", 4}}, {{"retention", "data"}})),
              DeltaLayer(scaled(kda, {{"retention", "constant"}, {"gamma", 0.9}})),
              DeltaLayer({{"decay", "tied"}, {"step_bias", true}, {"initial_state", "learned"}}),
          })};
}
// One layer of each of the other types without pages.
inline Mix AllScans() {
  const nlohmann::json none = nlohmann::json::object();
  return {"all_scans",
          NativeConfig({
              LayerOf({{"type", "gla"}, {"heads", 2}, {"key_dim", 8}, {"value_dim", 16}}, none),
              LayerOf({{"type", "mamba2"}, {"heads", 4}, {"head_dim", 8}, {"state_dim", 6}}, none),
              LayerOf({{"type", "mamba"}, {"channels", 40}, {"state_dim", 4}}, none),
              LayerOf({{"type", "longhorn"}, {"channels", 40}, {"state_dim", 4}}, none),
              LayerOf({{"type", "mlstm"}, {"heads", 2}, {"key_dim", 8}, {"value_dim", 16}}, none),
              KalmanLayer(),
          })};
}

// Heads of the sizes for which a GPU has kernels of their own.
inline Mix Tiles() {
  const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json scale = {{"gradient", "beta_aware"},
                                {"eta", 0.5},
                                {"normalise", false},
                                {"clip", {0.5, 2}},
                                {"retention", "none"}};
  const auto delta = [](int key_dim, int value_dim, nlohmann::json more) {
    more.update({{"key_dim", key_dim}, {"value_dim", value_dim}});
    return DeltaLayer(more);
  };
  nlohmann::json config = NativeConfig(
      {
          delta(64, 64, none),
          delta(128, 48, {{"heads", 1}, {"value_heads", 2}}),
          delta(64, 32, {{"decay", "channel"}, {"decay_rank", 8}}),
          delta(64, 16, {{"scale", scale}}),
          delta(
              64, 64,
              {{"decay", "none"}, {"step", "kaczmarz"}, {"key_norm", "none"}, {"step_eps", 1e-6}}),
          AttentionLayer({{"heads", 2}, {"head_dim", 64}, {"kv_heads", 1}}),
          AttentionLayer({{"heads", 2}, {"head_dim", 128}, {"kv_heads", 2}, {"window", 50}}),
          LayerOf({{"type", "gla"}, {"heads", 2}, {"key_dim", 64}, {"value_dim", 64}}, none),
          LayerOf({{"type", "mamba2"}, {"heads", 2}, {"head_dim", 64}, {"state_dim", 64}}, none),
          LayerOf({{"type", "mlstm"}, {"heads", 2}, {"key_dim", 32}, {"value_dim", 64}}, none),
          KalmanLayer({{"channels", 64}, {"state_dim", 16}}),
      },
      /*vocab_size=*/64, /*hidden_size=*/64);
  config["max_positions"] = 300;
  return {"tiles", std::move(config)};
}

// A token at which a model changed by OverflowIn loses its numbers.
constexpr int32_t kOverflowToken = 63;

// For RandomModel. Channel 0 of the residual stream is zero for all tokens but kOverflowToken, and
// no layer writes to it; the norm before the mixer of `layer` multiplies it by more than a float
// can hold.
inline RandomModel::Change OverflowIn(size_t layer) {
  const std::string norm = "layers." + std::to_string(layer) + ".mixer_norm.weight";
  return [norm](TestTensor* tensor) {
    const auto ends_with = [&](const std::string& end) {
      return tensor->name.size() >= end.size() &&
             tensor->name.compare(tensor->name.size() - end.size(), end.size(), end) == 0;
    };
    std::vector<float> values(static_cast<size_t>(tensor->bytes() / 4));
    std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
    if (tensor->name == "embedding.weight") {
      const auto width = static_cast<size_t>(tensor->shape[1]);
      for (size_t at = 0; at < values.size(); at += width) values[at] = 0;
      values[kOverflowToken * width] = 1000;
    } else if (ends_with(".out.weight") || ends_with(".down.weight")) {
      std::fill_n(values.begin(), tensor->shape[1], 0.0f);
    } else if (tensor->name == norm) {
      values[0] = 3e38f;
    }
    tensor->data = FloatBytes(values);
  };
}

inline std::vector<int32_t> RandomPrompt(size_t n, std::mt19937& random) {
  std::vector<int32_t> prompt(n);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 64);
  return prompt;
}

// Without kOverflowToken.
inline std::vector<int32_t> HarmlessPrompt(size_t n, std::mt19937& random) {
  std::vector<int32_t> prompt = RandomPrompt(n, random);
  std::replace(prompt.begin(), prompt.end(), kOverflowToken, 1);
  return prompt;
}

// Greedy, and everything scored.
inline Request Ask(std::vector<int32_t> prompt, int answer) {
  Request request = Greedy(std::move(prompt), answer);
  request.report = {.logprobs = true, .top = 2, .first_scored = 0};
  return request;
}

// The same answer, up to rounding: chunks end elsewhere in company. Where the two likeliest tokens
// are as good as equal, either is right, and what follows is another story; `ties` counts those.
inline void ExpectSame(const Answer& got, const Answer& alone, int* ties, double tolerance = 1e-3) {
  ASSERT_TRUE(got.end.why.ok()) << got.end.why;
  ASSERT_EQ(got.scored.size(), alone.scored.size());
  for (size_t i = 0; i < alone.scored.size(); ++i) {
    ASSERT_NEAR(got.scored[i].logprob, alone.scored[i].logprob, tolerance) << "prompt token " << i;
  }
  ASSERT_EQ(got.tokens.size(), alone.tokens.size());
  for (size_t i = 0; i < alone.tokens.size(); ++i) {
    ASSERT_NEAR(got.tokens[i].logprob, alone.tokens[i].logprob, tolerance) << "token " << i;
    if (got.tokens[i].token == alone.tokens[i].token) continue;
    const auto& top = alone.tokens[i].top;
    ASSERT_LT(top[0].logprob - top[1].logprob, tolerance) << "token " << i;
    ++*ties;
    return;
  }
}

}  // namespace eddy
