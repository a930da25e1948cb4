#include "kernels/layers/kalman/kalman.h"

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace eddy {
namespace {

constexpr const char* kConvActivationWords[] = {"silu", "gelu", "relu"};
constexpr const char* kGateWords[] = {"none", "silu", "gelu", "relu"};
constexpr const char* kValueWords[] = {"full", "conv", "low"};
constexpr const char* kNoiseWords[] = {"full", "low"};
constexpr const char* kDiscretizationWords[] = {"ou", "zoh"};
constexpr const char* kProcessNoiseWords[] = {"floor", "zero"};
constexpr const char* kReadoutWords[] = {"posterior", "prior"};
constexpr const char* kSkipWords[] = {"none", "scalar", "channel"};
constexpr const char* kPriorWords[] = {"unit", "learned"};

using Rule = ParamRule;
constexpr ParamRule kParams[] = {
    {.name = "channels", .kind = Rule::kInt, .min = 1, .max = 1 << 20},
    {.name = "state_dim", .kind = Rule::kInt, .min = 1, .max = 4096},
    {.name = "conv_width", .kind = Rule::kInt, .min = 0, .max = 8},
    {.name = "conv_activation", .kind = Rule::kWord, .words = kConvActivationWords},
    {.name = "value", .kind = Rule::kWord, .words = kValueWords},
    {.name = "value_rank", .kind = Rule::kInt, .min = 1, .max = 1 << 20, .nullable = true},
    {.name = "noise", .kind = Rule::kWord, .words = kNoiseWords},
    {.name = "noise_rank", .kind = Rule::kInt, .min = 1, .max = 1 << 20, .nullable = true},
    {.name = "noise_min", .kind = Rule::kReal, .min = 1e-12, .max = 1e12},
    {.name = "noise_max", .kind = Rule::kReal, .min = 1e-12, .max = 1e12, .nullable = true},
    {.name = "discretization", .kind = Rule::kWord, .words = kDiscretizationWords},
    {.name = "process_noise", .kind = Rule::kWord, .words = kProcessNoiseWords},
    {.name = "qk_norm", .kind = Rule::kFlag},
    {.name = "clip", .kind = Rule::kReal, .min = 1e-12, .max = 1e12, .nullable = true},
    {.name = "readout", .kind = Rule::kWord, .words = kReadoutWords},
    {.name = "gate", .kind = Rule::kWord, .words = kGateWords},
    {.name = "skip", .kind = Rule::kWord, .words = kSkipWords},
    {.name = "bias", .kind = Rule::kFlag},
    {.name = "prior", .kind = Rule::kWord, .words = kPriorWords},
};

// The enumerators from `first` on stand in the order of the words.
template <typename E, size_t kCount>
E FromWord(const char* const (&words)[kCount], const std::string& word, int first = 0) {
  for (size_t i = 0; i < kCount; ++i) {
    if (word == words[i]) return static_cast<E>(static_cast<int>(i) + first);
  }
  EDDY_CHECK(false && "the loader has checked the words");
  return E{};
}

std::optional<std::string> RankConflict(const LayerSpec& spec, const char* what, const char* rank) {
  const bool low = spec.Word(what) == "low";
  if (low == !spec.IsNull(rank)) return std::nullopt;
  const std::string said = std::string(what) + " \"" + spec.Word(what) + "\"";
  return low ? said + " needs a " + rank
             : said + " takes no " + rank + ", got " + std::to_string(spec.Int(rank));
}

std::optional<std::string> Conflict(const LayerSpec& spec) {
  if (auto conflict = RankConflict(spec, "value", "value_rank")) return conflict;
  if (auto conflict = RankConflict(spec, "noise", "noise_rank")) return conflict;
  if (!spec.IsNull("noise_max") && spec.Real("noise_max") < spec.Real("noise_min")) {
    return "noise_max is " + std::to_string(spec.Real("noise_max")) +
           ", it must be at least noise_min, " + std::to_string(spec.Real("noise_min"));
  }
  return std::nullopt;
}

std::vector<Field> Weights(const KalmanOptions& o, DType matrix) {
  const int64_t channels = o.channels;
  std::vector<Field> weights = {{.name = "norm.weight", .shape = {o.d_model, 1, 1, 1}}};
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    weights.push_back({.name = name + ".weight", .dtype = matrix, .shape = {out, in, 1, 1}});
    if (o.bias) weights.push_back({.name = name + ".bias", .shape = {out, 1, 1, 1}});
  };
  linear("in", o.gated() ? 2 * channels : channels, o.d_model);
  if (o.conv_width > 0) {
    weights.push_back(
        {.name = "conv.weight", .dtype = matrix, .shape = {channels, o.conv_width, 1, 1}});
    weights.push_back({.name = "conv.bias", .shape = {channels, 1, 1, 1}});
  }
  linear("sensor", o.value_width() + o.noise_width() + 2 * o.state_dim, channels);
  if (o.value == KalmanOptions::Value::kLow) linear("value_up", channels, o.value_rank);
  if (o.noise == KalmanOptions::Noise::kLow) linear("noise_up", channels, o.noise_rank);
  linear("out", o.d_model, channels);

  // What makes up the filters is float on every device.
  const auto filters = [&](const char* name) {
    weights.push_back({.name = name, .shape = {channels, o.state_dim, 1, 1}});
  };
  filters("step_raw");
  filters("rate_log");
  filters("process_noise");
  if (o.skip != KalmanOptions::Skip::kNone) {
    const int64_t count = o.skip == KalmanOptions::Skip::kScalar ? 1 : channels;
    weights.push_back({.name = "skip", .shape = {count, 1, 1, 1}});
  }
  if (o.learned_prior) {
    filters("prior_log_precision");
    filters("prior_information");
  }
  return weights;
}

std::optional<float> RealOrNothing(const LayerSpec& spec, const char* name) {
  if (spec.IsNull(name)) return std::nullopt;
  return static_cast<float>(spec.Real(name));
}

int64_t IntOrZero(const LayerSpec& spec, const char* name) {
  return spec.IsNull(name) ? 0 : spec.Int(name);
}

}  // namespace

KalmanOptions::KalmanOptions(const LayerSpec& spec)
    : d_model(spec.d_model),
      norm_eps(static_cast<float>(spec.norm_eps)),
      channels(spec.Int("channels")),
      state_dim(spec.Int("state_dim")),
      conv_width(spec.Int("conv_width")),
      conv_activation(FromWord<Activation>(kConvActivationWords, spec.Word("conv_activation"),
                                           /*first=*/static_cast<int>(Activation::kSilu))),
      value(FromWord<Value>(kValueWords, spec.Word("value"))),
      value_rank(IntOrZero(spec, "value_rank")),
      noise(FromWord<Noise>(kNoiseWords, spec.Word("noise"))),
      noise_rank(IntOrZero(spec, "noise_rank")),
      noise_min(static_cast<float>(spec.Real("noise_min"))),
      noise_max(RealOrNothing(spec, "noise_max")),
      discretization(FromWord<Discretization>(kDiscretizationWords, spec.Word("discretization"))),
      floored_process_noise(spec.Word("process_noise") == "floor"),
      qk_norm(spec.Flag("qk_norm")),
      clip(RealOrNothing(spec, "clip")),
      prior_readout(spec.Word("readout") == "prior"),
      gate(FromWord<Activation>(kGateWords, spec.Word("gate"))),
      skip(FromWord<Skip>(kSkipWords, spec.Word("skip"))),
      bias(spec.Flag("bias")),
      learned_prior(spec.Word("prior") == "learned") {}

int64_t KalmanOptions::value_width() const {
  switch (value) {
    case Value::kFull:
      return channels;
    case Value::kConv:
      return 0;
    case Value::kLow:
      return value_rank;
  }
  return 0;
}

LayerNeeds KalmanNeeds(const LayerSpec& spec, const DeviceTraits& traits) {
  const KalmanOptions o(spec);
  LayerNeeds needs;
  needs.weights = Weights(o, traits.matrices);
  needs.state.push_back({.name = "precision",
                         .shape = {o.channels, o.state_dim, 1, 1},
                         .initial = 1.0f,
                         .initial_weight = o.learned_prior ? "prior_log_precision" : "",
                         .initial_is_log = o.learned_prior});
  needs.state.push_back({.name = "information",
                         .shape = {o.channels, o.state_dim, 1, 1},
                         .initial_weight = o.learned_prior ? "prior_information" : ""});
  if (o.conv_width > 1) {
    needs.state.push_back({.name = "conv", .shape = {o.conv_width - 1, o.channels, 1, 1}});
  }
  needs.readouts = {Readout::kPrecision, Readout::kLeastPrecision, Readout::kDeviation,
                    Readout::kSurprise,  Readout::kInformation,    Readout::kSpread};
  needs.scratch_bytes_per_row = KalmanCpuFloatsPerRow(o) * static_cast<int64_t>(sizeof(float));
  return needs;
}

const LayerType& KalmanType() {
  static constexpr LayerType kType = {.name = "kalman",
                                      .params = kParams,
                                      .conflict = Conflict,
                                      .needs = KalmanNeeds,
                                      .make_cpu = MakeKalmanCpu};
  return kType;
}

}  // namespace eddy
