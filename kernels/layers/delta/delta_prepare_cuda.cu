#include <algorithm>
#include <cmath>

#include "kernels/layers/delta/delta_prepare_cuda.cuh"

namespace eddy {
namespace {

DeltaSettings SettingsOf(const DeltaOptions& o) {
  constexpr Activation kActivations[] = {Activation::kNone, Activation::kSilu, Activation::kRelu,
                                         Activation::kEluPlus1};
  return {.heads = static_cast<int>(o.shape.heads),
          .value_heads = static_cast<int>(o.shape.value_heads),
          .key_dim = static_cast<int>(o.shape.key_dim),
          .value_dim = static_cast<int>(o.shape.value_dim),
          .history = static_cast<int>(std::max<int64_t>(o.conv_width - 1, 0)),
          .activation = kActivations[static_cast<int>(o.qk_activation)],
          .query_norm = o.query_norm,
          .key_norm = o.key_norm,
          .query_scale = 1.0f / std::sqrt(static_cast<float>(o.shape.key_dim)),
          .step = o.step,
          .decay = o.decay,
          .step_max = o.step_max,
          .step_eps = o.step_eps,
          .decay_bound = o.decay_bound.value_or(0.0f),
          .bounded = o.decay_bound.has_value(),
          .scaled = o.scale.has_value(),
          .scale = o.scale.has_value() ? o.scale->rule : OsdnScaleOptions{}};
}

}  // namespace

DeltaPrepareParams DeltaPrepareParamsOf(const Step& step, const DeltaOptions& options,
                                        const DeltaPrepareArgs& args) {
  const DeltaSettings o = SettingsOf(options);
  return {.o = o,
          .a = args,
          .row_start = step.row_start,
          .slots = step.slots,
          .units = 2 * o.heads + o.value_heads +
                   (o.decay == DeltaOptions::Decay::kChannel ? o.value_heads : 0)};
}

void DeltaPrepareCuda(const Step& step, const DeltaOptions& options, const DeltaPrepareArgs& args) {
  if (args.part.rows == 0) return;
  const DeltaPrepareParams params = DeltaPrepareParamsOf(step, options, args);
  if (args.part.single) {
    LaunchDeltaPrepareSingle(params, step.stream);
  } else {
    LaunchDeltaPrepareRows(params, step.stream);
  }
}

}  // namespace eddy
