#include "engine/adapters/delta_mixer.h"

namespace eddy {
namespace {

template <typename T>
LayerSpec::Value OrNull(const std::optional<T>& value) {
  return value ? LayerSpec::Value(*value) : LayerSpec::Value();
}

}  // namespace

LayerSpec DeltaSpec(const DeltaMixer& mixer, int64_t d_model, double norm_eps) {
  return {.type = "delta",
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
}

LayerSpec MlpSpec(const std::string& type, int64_t size, int64_t d_model, double norm_eps) {
  return {.type = type, .d_model = d_model, .norm_eps = norm_eps, .params = {{"size", size}}};
}

}  // namespace eddy
