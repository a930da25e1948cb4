// Proves that OSDN's two phases do what the authors' own kernels did, for the three settings that
// they published: inputs and outputs of those are in tests/golden/rules (two sequences of 96 tokens
// with two heads, K = 32, V = 16; beta-unaware gradient, no decay of S; see the design
// notes, 15.2).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/rules/delta_rule/delta_rule.h"
#include "kernels/rules/osdn_scale/osdn_scale.h"
#include "tests/engine/model_runner.h"

namespace eddy {
namespace {

constexpr int64_t kSequences = 2, kTokens = 96, kHeads = 2, kKeyDim = 32, kValueDim = 16;
constexpr int64_t kRows = kSequences * kTokens;

struct Setting {
  const char* name;
  OsdnScaleOptions options;
  bool retains;
};

const std::vector<Setting>& Settings() {
  static const std::vector<Setting> kSettings = {
      {"none",
       {.beta_aware = false, .eta = 1, .clips = true, .clip_min = 0, .clip_max = 1e9f},
       false},
      {"apf",
       {.beta_aware = false, .eta = 1, .clips = true, .clip_min = 0, .clip_max = 1e9f},
       true},
      {"apf_bounded",
       {.beta_aware = false, .eta = .003f, .clips = true, .clip_min = .6666667f, .clip_max = 1.5f},
       true}};
  return kSettings;
}

// Heads of unit length, times `scale`.
std::vector<float> Normalised(std::vector<float> x, double scale) {
  for (size_t at = 0; at < x.size(); at += kKeyDim) {
    double square = 1e-6;
    for (size_t i = 0; i < kKeyDim; ++i) square += std::pow(static_cast<double>(x[at + i]), 2);
    for (size_t i = 0; i < kKeyDim; ++i) {
      x[at + i] = static_cast<float>(static_cast<double>(x[at + i]) / std::sqrt(square) * scale);
    }
  }
  return x;
}

// The greatest distance, relative to the greatest magnitude.
void ExpectSame(std::span<const float> got, const std::vector<float>& wanted, const char* what) {
  ASSERT_EQ(got.size(), wanted.size());
  double worst = 0, most = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what;
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i])));
    most = std::max(most, std::abs(static_cast<double>(wanted[i])));
  }
  EXPECT_LE(worst, 2e-6 * most) << what;
  std::printf("  %s: %.1e\n", what, worst / most);
}

// Slot 0 is nobody's.
std::vector<float> Pool(int64_t size, std::vector<float> of_each) {
  of_each.resize(static_cast<size_t>(size));
  std::vector<float> pool(of_each.size(), -1.0f);
  for (int i = 0; i < kSequences; ++i) pool.insert(pool.end(), of_each.begin(), of_each.end());
  return pool;
}

FieldView ViewOf(std::vector<float>& pool) {
  return {.base = reinterpret_cast<std::byte*>(pool.data()),
          .stride = static_cast<int64_t>(pool.size() * sizeof(float)) / (kSequences + 1)};
}

TEST(OsdnRule, DoesWhatTheAuthorsKernelsDid) {
  std::map<std::string, std::vector<float>> set;
  for (const TestTensor& tensor : ReadTensors("tests/golden/rules/osdn_delta_rule.safetensors")) {
    set[tensor.name] = Floats(tensor);
  }
  const std::vector<float> q = Normalised(set.at("q"), 1 / std::sqrt(static_cast<double>(kKeyDim)));
  const std::vector<float> k = Normalised(set.at("k"), 1);
  ASSERT_EQ(k.size(), static_cast<size_t>(kRows * kHeads * kKeyDim));
  const DeltaRuleShape shape{
      .heads = kHeads, .value_heads = kHeads, .key_dim = kKeyDim, .value_dim = kValueDim};
  std::vector<float> scratch(static_cast<size_t>(DeltaRuleScratchFloats(shape)));
  const std::vector<int32_t> starts = {0, kTokens, kRows}, slots = {1, 2};
  const Step step = {
      .rows = kRows, .sequences = 2, .row_start = starts.data(), .slots = slots.data()};
  for (const Setting& setting : Settings()) {
    const std::string name = setting.name;
    std::printf("%s\n", setting.name);
    std::vector<float> d = Pool(kHeads * kKeyDim, set.at("d0")), w(k.size());
    OsdnScaleCpu(step, {.heads = kHeads,
                        .value_heads = kHeads,
                        .key_dim = kKeyDim,
                        .options = setting.options,
                        .k = k.data(),
                        .beta = set.at("beta").data(),
                        .retention = setting.retains ? set.at("retention").data() : nullptr,
                        .retention_stride = kHeads,
                        .scale = ViewOf(d),
                        .w = w.data()});
    ExpectSame(std::span(d).subspan(kHeads * kKeyDim), set.at("d_" + name), "d");
    for (const bool chunks : {false, true}) {
      std::vector<float> state = Pool(kHeads * kKeyDim * kValueDim, {});
      std::vector<float> out(set.at("v").size());
      const DeltaRuleArgs args = {.shape = shape,
                                  .q = q.data(),
                                  .k = k.data(),
                                  .w = w.data(),
                                  .v = set.at("v").data(),
                                  .beta = set.at("beta").data(),
                                  .out = out.data(),
                                  .scratch = scratch.data()};
      for (int i = 0; i < kSequences; ++i) {
        (chunks ? DeltaRuleChunks : DeltaRuleSteps)(args, starts[static_cast<size_t>(i)], kTokens,
                                                    ViewOf(state).at<float>(i + 1));
      }
      ExpectSame(out, set.at("o_" + name), chunks ? "o, chunks" : "o");
      ExpectSame(std::span(state).subspan(kHeads * kKeyDim * kValueDim), set.at("S_" + name),
                 chunks ? "S, chunks" : "S");
    }
  }
}

}  // namespace
}  // namespace eddy
