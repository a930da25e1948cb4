#include "engine/adapters/delta_mixer.h"

#include <utility>
#include <vector>

namespace eddy {
namespace {

template <typename T>
LayerSpec::Value OrNull(const std::optional<T>& value) {
  return value ? LayerSpec::Value(*value) : LayerSpec::Value();
}

using Params = std::vector<std::pair<std::string, LayerSpec::Value>>;

// All null without a scale.
Params ScaleParams(const std::optional<DeltaScale>& scale) {
  Params params;
  for (const char* name :
       {"gradient", "eta", "normalise", "clip_min", "clip_max", "retention", "gamma"}) {
    params.emplace_back(std::string("scale.") + name, LayerSpec::Value());
  }
  if (!scale) return params;
  params[0].second = scale->gradient;
  params[1].second = scale->eta;
  params[2].second = scale->normalise;
  if (scale->clip) {
    params[3].second = (*scale->clip)[0];
    params[4].second = (*scale->clip)[1];
  }
  params[5].second = scale->retention;
  params[6].second = OrNull(scale->gamma);
  return params;
}

}  // namespace

std::optional<DeltaScale> ReadNativeScale(KeyReader& keys) {
  if (!keys.Has("scale")) {
    keys.Ignore({"scale"});
    return std::nullopt;
  }
  KeyReader object = keys.Object("scale");
  DeltaScale scale;
  scale.gradient = object.Word("gradient", {"beta_aware", "beta_unaware"});
  scale.eta = object.Real("eta", kScaleEta);
  scale.normalise = object.Flag("normalise", std::nullopt);
  scale.clip = object.PairOrNull("clip", kScaleClip);
  scale.retention = object.Word("retention", {"none", "constant", "learned", "data"});
  if (scale.retention == "constant") scale.gamma = object.Real("gamma", kScaleGamma);
  object.End();
  return scale;
}

LayerSpec DeltaSpec(const DeltaMixer& mixer, int64_t d_model, double norm_eps) {
  LayerSpec spec = {.type = "delta",
                    .d_model = d_model,
                    .norm_eps = norm_eps,
                    .params = {{"heads", mixer.heads},
                               {"value_heads", mixer.value_heads},
                               {"key_dim", mixer.key_dim},
                               {"value_dim", mixer.value_dim},
                               {"decay", mixer.decay},
                               {"decay_rank", OrNull(mixer.decay_rank)},
                               {"decay_bound", OrNull(mixer.decay_bound)},
                               {"query_norm", mixer.query_norm},
                               {"key_norm", mixer.key_norm},
                               {"qk_activation", mixer.qk_activation},
                               {"conv_width", mixer.conv_width},
                               {"step", mixer.step},
                               {"step_max", mixer.step_max},
                               {"step_bias", mixer.step_bias},
                               {"step_eps", OrNull(mixer.step_eps)},
                               {"gate", mixer.gate},
                               {"gate_rank", mixer.gate_rank},
                               {"initial_state", mixer.initial_state}}};
  for (auto& param : ScaleParams(mixer.scale)) spec.params.push_back(std::move(param));
  return spec;
}

LayerSpec MlpSpec(const std::string& type, int64_t size, int64_t d_model, double norm_eps) {
  return {.type = type, .d_model = d_model, .norm_eps = norm_eps, .params = {{"size", size}}};
}

}  // namespace eddy
