// Mamba as in flash-linear-attention and in transformers.
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
  return {{"norm.", layer + "norm."},
          {"in.", mixer + "in_proj."},
          {"conv.", mixer + "conv1d."},
          {"select.", mixer + "x_proj."},
          {"step_up.", mixer + "dt_proj."},
          {"decay_rate_log", mixer + "A_log"},
          {"skip", mixer + "D"},
          {"out.", mixer + "out_proj."}};
}

// Start values and choices among kernels that compute the same, and what the converter of the first
// published files left of the names of another program.
void IgnoreKeysWithoutFunction(KeyReader& keys) {
  keys.Ignore({"d_inner", "d_model", "dt_init_scheme", "dt_scale", "fused_add_norm", "n_layer",
               "pad_vocab_size_multiple", "time_step_scale", "use_associative_scan",
               "use_mambapy"});
  keys.MustBe("ssm_cfg", nlohmann::json::object(), "its options are not served");
  keys.MustBe("rms_norm", true, "the function without the norm is not served");
}

// Under today's name or the older one; a file with both holds tensors that fit one of them.
int64_t ReadStepRank(KeyReader& keys, int64_t hidden_size) {
  const bool today = keys.Has("dt_rank");
  keys.Ignore({"dt_rank", "time_step_rank"});
  const auto rank = keys.IntOrWord(today ? "dt_rank" : "time_step_rank", {.min = 1, .max = 65536},
                                   {"auto"}, "auto");
  const auto* const number = std::get_if<int64_t>(&rank);
  return number != nullptr ? *number : (hidden_size + 15) / 16;
}

}  // namespace

ModelConfig ReadMamba(KeyReader& keys) {
  // flash-linear-attention always writes tie_word_embeddings; transformers leaves it out where it
  // is true, as it is by default.
  MambaBackbone backbone = ReadMambaBackbone(keys, /*tied=*/true);
  const int64_t d_model = backbone.config.hidden_size;
  MambaMixer mixer = {.channels = backbone.inner};
  if (mixer.channels < 1) keys.Refuse("expand", "times hidden_size it must be at least 1");
  const auto given = keys.IntOrNull("intermediate_size", {.min = 1, .max = kMaxHiddenSize});
  if (given && *given != backbone.inner) {
    keys.Refuse("intermediate_size", absl::StrCat("expand times hidden_size is ", backbone.inner,
                                                  ": they must be equal"));
  }
  mixer.state_dim = keys.Int("state_size", {.min = 1, .max = 1024, .absent = 16});
  mixer.step_rank = ReadStepRank(keys, d_model);
  mixer.conv_width = keys.Int("conv_kernel", {.min = 2, .max = 8, .absent = 4});
  mixer.conv_bias = keys.Flag("use_conv_bias", true);
  mixer.bias = keys.Flag("use_bias", false);
  IgnoreKeysWithoutFunction(keys);
  const LayerSpec spec = MambaSpec("mamba", mixer, d_model, backbone.config.norm_eps);
  return WithMambaLayers(std::move(backbone), spec, Names);
}

}  // namespace eddy
