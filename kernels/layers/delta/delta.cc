#include "kernels/layers/delta/delta.h"

#include <utility>

#include "base/check.h"

namespace eddy {
namespace {

constexpr const char* kDecayWords[] = {"none", "head", "channel", "tied"};
constexpr const char* kNormWords[] = {"none", "l2", "sum"};
constexpr const char* kActivationWords[] = {"identity", "silu", "relu", "elu"};
constexpr const char* kStepWords[] = {"sigmoid",          "one",     "kaczmarz", "kaczmarz_full",
                                      "kaczmarz_learned", "longhorn"};
constexpr const char* kGateWords[] = {"none", "silu", "sigmoid"};
constexpr const char* kInitialWords[] = {"zero", "learned"};
constexpr const char* kGradientWords[] = {"beta_aware", "beta_unaware"};
constexpr const char* kRetentionWords[] = {"none", "constant", "learned", "data"};
constexpr double kMostClip = 1e30;

using Rule = ParamRule;
constexpr ParamRule kParams[] = {
    {.name = "heads", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "value_heads", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "key_dim", .kind = Rule::kInt, .min = 1, .max = 256},
    {.name = "value_dim", .kind = Rule::kInt, .min = 1, .max = 512},
    {.name = "decay", .kind = Rule::kWord, .words = kDecayWords},
    {.name = "decay_rank", .kind = Rule::kInt, .min = 1, .max = 65536, .nullable = true},
    {.name = "decay_bound", .kind = Rule::kReal, .min = -5, .max = 0, .nullable = true},
    {.name = "query_norm", .kind = Rule::kWord, .words = kNormWords},
    {.name = "key_norm", .kind = Rule::kWord, .words = kNormWords},
    {.name = "qk_activation", .kind = Rule::kWord, .words = kActivationWords},
    {.name = "conv_width", .kind = Rule::kInt, .min = 0, .max = 8},
    {.name = "step", .kind = Rule::kWord, .words = kStepWords},
    {.name = "step_max", .kind = Rule::kInt, .min = 1, .max = 2},
    {.name = "step_bias", .kind = Rule::kFlag},
    {.name = "step_eps", .kind = Rule::kReal, .min = 0, .max = 1, .nullable = true},
    {.name = "gate", .kind = Rule::kWord, .words = kGateWords},
    {.name = "gate_rank", .kind = Rule::kInt, .min = 0, .max = 65536},
    {.name = "initial_state", .kind = Rule::kWord, .words = kInitialWords},
    {.name = "scale.gradient", .kind = Rule::kWord, .words = kGradientWords, .nullable = true},
    {.name = "scale.eta", .kind = Rule::kReal, .min = 0, .max = 1000, .nullable = true},
    {.name = "scale.normalise", .kind = Rule::kFlag, .nullable = true},
    {.name = "scale.clip_min",
     .kind = Rule::kReal,
     .min = -kMostClip,
     .max = kMostClip,
     .nullable = true},
    {.name = "scale.clip_max",
     .kind = Rule::kReal,
     .min = -kMostClip,
     .max = kMostClip,
     .nullable = true},
    {.name = "scale.retention", .kind = Rule::kWord, .words = kRetentionWords, .nullable = true},
    {.name = "scale.gamma", .kind = Rule::kReal, .min = 0, .max = 1, .nullable = true},
};

// The enumerators stand in the order of the words.
template <typename E, size_t kCount>
E FromWord(const char* const (&words)[kCount], const std::string& word) {
  for (size_t i = 0; i < kCount; ++i) {
    if (word == words[i]) return static_cast<E>(i);
  }
  EDDY_CHECK(false && "the loader has checked the words");
  return E{};
}

std::optional<std::string> StepConflict(const LayerSpec& spec, const DeltaOptions& o) {
  const std::string step = "step \"" + spec.Word("step") + "\"";
  if (o.uses_step_eps() && !(o.step_eps > 0)) return step + " needs a step_eps above 0";
  if (!o.uses_step_eps() && !spec.IsNull("step_eps")) return step + " takes no step_eps";
  if (o.uses_key_length() && o.key_norm != DeltaOptions::Norm::kNone) {
    return step + " needs key_norm \"none\", got \"" + spec.Word("key_norm") + "\"";
  }
  if (!o.has_step_logits() && o.step_max != 1) return step + " needs step_max 1, got 2";
  if (!o.has_step_logits() && o.step_bias) return step + " has no step_bias";
  return std::nullopt;
}

std::optional<std::string> DecayConflict(const LayerSpec& spec, const DeltaOptions& o) {
  const std::string decay = "decay \"" + spec.Word("decay") + "\"";
  const bool channel = o.decay == DeltaOptions::Decay::kChannel;
  if (channel && spec.IsNull("decay_rank")) return decay + " needs a decay_rank";
  if (!channel && !spec.IsNull("decay_rank")) return decay + " takes no decay_rank";
  if (!channel && o.decay_bound) return decay + " takes no decay_bound";
  if (o.decay_bound && !(*o.decay_bound < 0)) {
    return "decay_bound is 0, it must be null or in [-5, 0)";
  }
  if (o.decay == DeltaOptions::Decay::kTied && !o.has_step_logits()) {
    return decay + " needs a step with logits, got \"" + spec.Word("step") + "\"";
  }
  if (o.decay == DeltaOptions::Decay::kTied && o.step_max != 1) {
    return decay + " needs step_max 1, got 2";
  }
  return std::nullopt;
}

std::optional<std::string> NoScaleConflict(const LayerSpec& spec) {
  for (const auto& [name, value] : spec.params) {
    if (name.rfind("scale.", 0) == 0 && !std::holds_alternative<std::monostate>(value)) {
      return name + " is given, but scale.gradient is null";
    }
  }
  return std::nullopt;
}

// What can be said before DeltaOptions is made, which relies on it.
std::optional<std::string> ScaleConflict(const LayerSpec& spec) {
  if (spec.IsNull("scale.gradient")) return NoScaleConflict(spec);
  for (const char* name : {"scale.eta", "scale.normalise", "scale.retention"}) {
    if (spec.IsNull(name)) return std::string(name) + " is null, a scale needs it";
  }
  if (!(spec.Real("scale.eta") > 0)) return "scale.eta is 0, it must be above 0";
  if (spec.IsNull("scale.clip_min") != spec.IsNull("scale.clip_max")) {
    return "scale.clip_min and scale.clip_max must both be null or both be given";
  }
  if (!spec.IsNull("scale.clip_min") &&
      !(spec.Real("scale.clip_min") < spec.Real("scale.clip_max"))) {
    return "scale.clip_min must be less than scale.clip_max";
  }
  const bool constant = spec.Word("scale.retention") == "constant";
  const std::string retention = "scale.retention \"" + spec.Word("scale.retention") + "\"";
  if (constant && (spec.IsNull("scale.gamma") || !(spec.Real("scale.gamma") > 0))) {
    return retention + " needs a scale.gamma in (0, 1]";
  }
  if (!constant && !spec.IsNull("scale.gamma")) return retention + " takes no scale.gamma";
  if (spec.Word("step") != "sigmoid") {
    return "a scale needs step \"sigmoid\", got \"" + spec.Word("step") + "\"";
  }
  if (spec.Word("key_norm") != "l2") {
    return "a scale needs key_norm \"l2\", got \"" + spec.Word("key_norm") + "\"";
  }
  return std::nullopt;
}

std::optional<std::string> Conflict(const LayerSpec& spec) {
  if (auto conflict = ScaleConflict(spec)) return conflict;
  const DeltaOptions o(spec);
  if (o.shape.value_heads % o.shape.heads != 0) {
    return "value_heads is " + std::to_string(o.shape.value_heads) +
           ", it must be a multiple of heads, " + std::to_string(o.shape.heads);
  }
  if (o.conv_width == 1) return "conv_width is 1, it must be 0 or 2 to 8";
  if (o.gate == DeltaOptions::Gate::kNone && o.gate_rank != 0) {
    return "gate \"none\" needs gate_rank 0, got " + std::to_string(o.gate_rank);
  }
  if (auto conflict = StepConflict(spec, o)) return conflict;
  return DecayConflict(spec, o);
}

void AddDecayVectors(const DeltaOptions& o, std::vector<Field>& weights) {
  const int64_t value_heads = o.shape.value_heads;
  if (o.decay != DeltaOptions::Decay::kHead && o.decay != DeltaOptions::Decay::kChannel) return;
  const bool channel = o.decay == DeltaOptions::Decay::kChannel;
  weights.push_back({.name = "decay_rate_log", .shape = {value_heads, 1, 1, 1}});
  weights.push_back({.name = "decay_bias",
                     .shape = {channel ? value_heads * o.shape.key_dim : value_heads, 1, 1, 1}});
}

void AddScaleVectors(const DeltaOptions& o, std::vector<Field>& weights) {
  const int64_t value_heads = o.shape.value_heads;
  // Always float: it becomes a part of the state.
  weights.push_back({.name = "scale_init", .shape = {value_heads, o.shape.key_dim, 1, 1}});
  if (o.scale->retention == DeltaOptions::Retention::kLearned) {
    weights.push_back({.name = "retention_logit", .shape = {value_heads, 1, 1, 1}});
  }
  if (o.scale->retention == DeltaOptions::Retention::kData) {
    weights.push_back({.name = "retention.bias", .shape = {value_heads, 1, 1, 1}});
  }
}

// All that is multiplied with the normed row, [*, D]. Weights are laid down in the order in which
// they are declared, so these lie side by side and one product can read several of them. Those with
// a second matrix behind them come last: their results have another type.
void AddInputMatrices(const DeltaOptions& o, DType matrix, std::vector<Field>& weights) {
  const auto add = [&](const char* name, int64_t out) {
    weights.push_back({.name = name, .dtype = matrix, .shape = {out, o.d_model, 1, 1}});
  };
  const int64_t value_heads = o.shape.value_heads;
  const bool gates = o.gate != DeltaOptions::Gate::kNone;
  add("q.weight", o.q_width());
  add("k.weight", o.q_width());
  add("v.weight", o.v_width());
  if (gates && o.gate_rank == 0) add("gate.weight", o.v_width());
  if (o.has_step_logits()) add("step.weight", value_heads);
  if (o.decay == DeltaOptions::Decay::kHead) add("decay.weight", value_heads);
  if (o.scale && o.scale->retention == DeltaOptions::Retention::kData) {
    add("retention.weight", value_heads);
  }
  if (gates && o.gate_rank > 0) add("gate_down.weight", o.gate_rank);
  if (o.decay == DeltaOptions::Decay::kChannel) add("decay_down.weight", o.decay_rank);
}

DeltaOptions::Scale ReadScale(const LayerSpec& spec) {
  DeltaOptions::Scale scale = {.rule = {.beta_aware = spec.Word("scale.gradient") == "beta_aware",
                                        .eta = static_cast<float>(spec.Real("scale.eta")),
                                        .normalise = spec.Flag("scale.normalise"),
                                        .clips = !spec.IsNull("scale.clip_min")},
                               .retention = FromWord<DeltaOptions::Retention>(
                                   kRetentionWords, spec.Word("scale.retention"))};
  if (scale.rule.clips) {
    scale.rule.clip_min = static_cast<float>(spec.Real("scale.clip_min"));
    scale.rule.clip_max = static_cast<float>(spec.Real("scale.clip_max"));
  }
  if (!spec.IsNull("scale.gamma")) scale.gamma = static_cast<float>(spec.Real("scale.gamma"));
  return scale;
}

std::vector<Field> Weights(const DeltaOptions& o, DType matrix, DType states) {
  const int64_t d_model = o.d_model, q = o.q_width(), v = o.v_width(), width = o.conv_width;
  const int64_t value_heads = o.shape.value_heads;
  std::vector<Field> weights = {{.name = "norm.weight", .shape = {d_model, 1, 1, 1}}};
  AddInputMatrices(o, matrix, weights);
  const auto add_matrix = [&](const char* name, int64_t out, int64_t in) {
    weights.push_back({.name = name, .dtype = matrix, .shape = {out, in, 1, 1}});
  };
  if (o.gate_rank > 0) {
    add_matrix("gate_up.weight", v, o.gate_rank);
    weights.push_back({.name = "gate_up.bias", .shape = {v, 1, 1, 1}});
  }
  if (o.decay == DeltaOptions::Decay::kChannel) {
    add_matrix("decay_up.weight", value_heads * o.shape.key_dim, o.decay_rank);
  }
  if (width > 0) {
    add_matrix("q_conv.weight", q, width);
    add_matrix("k_conv.weight", q, width);
    add_matrix("v_conv.weight", v, width);
  }
  if (o.step_bias) weights.push_back({.name = "step.bias", .shape = {value_heads, 1, 1, 1}});
  if (o.step == DeltaOptions::StepSize::kKaczmarzLearned) {
    weights.push_back({.name = "step_scale_raw", .shape = {value_heads, 1, 1, 1}});
  }
  AddDecayVectors(o, weights);
  weights.push_back({.name = "out_norm.weight", .shape = {o.shape.value_dim, 1, 1, 1}});
  add_matrix("out.weight", d_model, v);
  if (o.learned_state) {
    // Of the type of the state, whose part it becomes.
    weights.push_back({.name = "state_init",
                       .dtype = states,
                       .shape = {value_heads, o.shape.key_dim, o.shape.value_dim, 1}});
  }
  if (o.scale) AddScaleVectors(o, weights);
  return weights;
}

}  // namespace

DeltaOptions::DeltaOptions(const LayerSpec& spec)
    : d_model(spec.d_model),
      norm_eps(static_cast<float>(spec.norm_eps)),
      shape{.heads = spec.Int("heads"),
            .value_heads = spec.Int("value_heads"),
            .key_dim = spec.Int("key_dim"),
            .value_dim = spec.Int("value_dim")},
      decay(FromWord<Decay>(kDecayWords, spec.Word("decay"))),
      query_norm(FromWord<Norm>(kNormWords, spec.Word("query_norm"))),
      key_norm(FromWord<Norm>(kNormWords, spec.Word("key_norm"))),
      qk_activation(FromWord<Activation>(kActivationWords, spec.Word("qk_activation"))),
      conv_width(spec.Int("conv_width")),
      step(FromWord<StepSize>(kStepWords, spec.Word("step"))),
      step_max(static_cast<float>(spec.Int("step_max"))),
      step_bias(spec.Flag("step_bias")),
      gate(FromWord<Gate>(kGateWords, spec.Word("gate"))),
      gate_rank(spec.Int("gate_rank")),
      learned_state(spec.Word("initial_state") == "learned") {
  if (!spec.IsNull("decay_rank")) decay_rank = spec.Int("decay_rank");
  if (!spec.IsNull("decay_bound")) decay_bound = static_cast<float>(spec.Real("decay_bound"));
  if (!spec.IsNull("step_eps")) step_eps = static_cast<float>(spec.Real("step_eps"));
  if (!spec.IsNull("scale.gradient")) scale = ReadScale(spec);
}

LayerNeeds DeltaNeeds(const LayerSpec& spec, const DeviceTraits& traits) {
  const DeltaOptions o(spec);
  const auto& [heads, value_heads, key_dim, value_dim] = o.shape;
  LayerNeeds needs;
  needs.weights = Weights(o, traits.matrices, traits.states);
  needs.state.push_back({.name = "state",
                         .dtype = traits.states,
                         .shape = {value_heads, key_dim, value_dim, 1},
                         .initial_weight = o.learned_state ? "state_init" : ""});
  if (o.conv_width > 0) {
    const int64_t history = o.conv_width - 1;
    needs.state.push_back({.name = "conv_q", .shape = {history, o.q_width(), 1, 1}});
    needs.state.push_back({.name = "conv_k", .shape = {history, o.q_width(), 1, 1}});
    needs.state.push_back({.name = "conv_v", .shape = {history, o.v_width(), 1, 1}});
  }
  if (o.scale) {
    needs.state.push_back(
        {.name = "scale", .shape = {value_heads, key_dim, 1, 1}, .initial_weight = "scale_init"});
  }
  for (Field& field : DeltaRingFields(o.shape, o.rule_decay(), traits.pending_updates)) {
    needs.state.push_back(std::move(field));
  }
  needs.readouts = {Readout::kResidual, Readout::kContraction, Readout::kDecay};
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  needs.scratch_bytes = DeltaRuleScratchFloats(o.shape, traits.states) * float_bytes;
  needs.scratch_bytes_per_row = DeltaCpuFloatsPerRow(o) * float_bytes;
  return needs;
}

LayerNeeds DeltaNeedsNamed(const LayerSpec& spec, const LayerParts& parts) {
  LayerNeeds needs = DeltaNeeds(spec, DeviceTraits{});
  // Any number above 1 gives the names; how many there are stands in the shape.
  if (parts.state.size() > needs.state.size()) needs = DeltaNeeds(spec, {.pending_updates = 2});
  return needs;
}

DeltaRing DeltaRingOf(const LayerNeeds& needs, const LayerParts& parts) {
  const auto field = [&](const char* name) {
    const FieldView* view = FindState(needs, parts, name);
    return view == nullptr ? FieldView{} : *view;
  };
  return {.w = field("ring_w"),
          .n = field("ring_n"),
          .a = field("ring_a"),
          .count = field("ring_count")};
}

const LayerType& DeltaType() {
  static constexpr LayerType kType = {.name = "delta",
                                      .params = kParams,
                                      .conflict = Conflict,
                                      .needs = DeltaNeeds,
                                      .make_cpu = MakeDeltaCpu};
  return kType;
}

}  // namespace eddy
