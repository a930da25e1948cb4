// Mamba2 as in flash-linear-attention.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/adapters/mamba_backbone.h"
#include "engine/adapters/scan_mixers.h"

namespace eddy {
namespace {

std::vector<NameRule> Names(const std::string& layer) {
  const std::string mixer = layer + "mixer.";
  return {{"norm.", layer + "norm."},          {"in.", mixer + "in_proj."},
          {"conv.", mixer + "conv1d."},        {"step_bias", mixer + "dt_bias"},
          {"decay_rate_log", mixer + "A_log"}, {"skip", mixer + "D"},
          {"out_norm.", mixer + "norm."},      {"out.", mixer + "out_proj."}};
}

// Today's class reads dt_limit; older ones and that of transformers call it time_step_limit. Which
// of them counts is as with the norm's (mamba_backbone.cc).
Interval ReadStepRange(KeyReader& keys) {
  const Interval range = keys.Range("dt_limit", kMamba2Step, {});
  const Interval old = keys.Range("time_step_limit", kMamba2Step, {});
  if (!keys.Has("time_step_limit")) return range;
  if (!keys.Has("dt_limit")) return old;
  if (old.min != range.min || old.max != range.max) {
    keys.Refuse("time_step_limit", "it must say the same as dt_limit");
  }
  return range;
}

Mamba2Mixer ReadMixer(KeyReader& keys, int64_t inner) {
  Mamba2Mixer mixer;
  mixer.head_dim = keys.Int("head_dim", {.min = 1, .max = 65536, .absent = 64});
  mixer.heads = inner / mixer.head_dim;
  if (mixer.heads < 1 || inner % mixer.head_dim != 0) {
    keys.Refuse("head_dim", absl::StrCat("must divide expand times hidden_size, ", inner));
    mixer.heads = 1;
  }
  const auto given = keys.IntOrNull("num_heads", {.min = 1, .max = 65536});
  if (given && *given != mixer.heads) {
    keys.Refuse("num_heads", absl::StrCat("expand times hidden_size over head_dim is ", mixer.heads,
                                          ": they must be equal"));
  }
  mixer.state_dim = keys.Int("state_size", {.min = 1, .max = 65536, .absent = 128});
  mixer.groups = keys.Int("n_groups", {.min = 1, .max = 65536, .absent = 1});
  mixer.conv_width = keys.Int("conv_kernel", {.min = 2, .max = 8, .absent = 4});
  mixer.conv_bias = keys.Flag("use_conv_bias", true);
  mixer.bias = keys.Flag("use_bias", false);
  mixer.step_range = ReadStepRange(keys);
  return mixer;
}

}  // namespace

ModelConfig ReadMamba2(KeyReader& keys) {
  MambaBackbone backbone = ReadMambaBackbone(keys, /*tied=*/false);
  const Mamba2Mixer mixer = ReadMixer(keys, backbone.inner);
  keys.MustBe("norm_before_gate", false, "the norm behind the gate is the one that is served");
  // Training recipes write the key with an underscore.
  keys.MustBe("rmsnorm", true, "the function without the norm is not served");
  keys.MustBe("rms_norm", true, "the function without the norm is not served");
  keys.MustBe("D_has_hdim", false, "a skip for each channel is not served");
  // Start values, a choice among kernels that compute the same, and Mamba's rank, which is written
  // but not used.
  keys.Ignore({"A_init_range", "chunk_size", "conv_init", "time_step_rank"});
  const LayerSpec spec = Mamba2Spec(mixer, backbone.config.hidden_size, backbone.config.norm_eps);
  return WithMambaLayers(std::move(backbone), spec, Names);
}

}  // namespace eddy
