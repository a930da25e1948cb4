// OSDN, online scaled DeltaNet (Zhou et al., arXiv 2605.13473), in the words of the authors' code:
// DeltaNet, Gated DeltaNet or KDA, and a learned scale of the write key. The three types differ in
// what a missing key means. None may leave osgm_beta_aware out: paper and code mean different
// gradients by that, and a file cannot tell which of them it was trained with.
#include <string>
#include <utility>

#include "engine/adapters/fla.h"
#include "engine/weights.h"

namespace eddy {
namespace {

// What a key of the scale means that is null or is not there.
struct Habits {
  // Where the key is absent; nothing: it is required.
  std::optional<bool> use_osgm = {};
  // Absent keys: eta 1, no denominator, d in [0, 1e9], gamma 0.999. Else they are required.
  bool absent_is_default = false;
  // The same for null. Else null bounds are no clip, and a null eta or denominator is refused.
  bool null_is_default = false;
  // Where the key is absent; null: it is required.
  const char* decay_mode = nullptr;
};

constexpr double kEta = 1.0, kGamma = 0.999;

std::optional<double> ReadBound(KeyReader& keys, const char* key, const Habits& habits,
                                double usual) {
  if (keys.Has(key)) return keys.Real(key, kScaleClip);
  if (!habits.absent_is_default) {
    keys.RequireNull(key);
    return std::nullopt;
  }
  const auto bound =
      keys.RealOrNull(key, {.min = kScaleClip.min, .max = kScaleClip.max, .absent = usual});
  return habits.null_is_default ? usual : bound;
}

std::string ReadRetention(KeyReader& keys, const Habits& habits) {
  const std::string mode = keys.Word(
      "osgm_decay_mode", {"none", "constant", "learnable", "data_dependent"}, habits.decay_mode);
  // An older key, which the mode has replaced.
  if (keys.Flag("osgm_decay", false) && mode == "none") {
    keys.Refuse("osgm_decay", "but osgm_decay_mode is \"none\"");
  }
  if (mode == "learnable") return "learned";
  return mode == "data_dependent" ? "data" : mode;
}

DeltaScale ReadScale(KeyReader& keys, const Habits& habits) {
  DeltaScale scale;
  if (!keys.Has("osgm_beta_aware")) {
    keys.Refuse("osgm_beta_aware",
                "must be true or false: it decides the gradient of the scale, and there is no "
                "default (checkpoints of the authors' osla_delta_net code need false)");
  }
  scale.gradient = keys.Flag("osgm_beta_aware", true) ? "beta_aware" : "beta_unaware";

  const auto absent = [&](auto value) {
    return habits.absent_is_default ? std::optional(value) : std::nullopt;
  };
  const auto usual = [&](const char* key) { return habits.null_is_default && !keys.Has(key); };
  scale.eta = kEta;
  if (usual("osgm_eta")) {
    keys.Ignore({"osgm_eta"});
  } else {
    scale.eta =
        keys.Real("osgm_eta", {.min = kScaleEta.min, .max = kScaleEta.max, .absent = absent(kEta)});
  }
  if (usual("osgm_use_denominator")) {
    keys.Ignore({"osgm_use_denominator"});
  } else {
    scale.normalise = keys.Flag("osgm_use_denominator", absent(false));
  }
  const auto least = ReadBound(keys, "osgm_d_min", habits, 0.0);
  const auto greatest = ReadBound(keys, "osgm_d_max", habits, 1e9);
  if (least && greatest) {
    scale.clip = {*least, *greatest};
    if (*least >= *greatest) keys.Refuse("osgm_d_min", "must be below osgm_d_max");
  }
  scale.retention = ReadRetention(keys, habits);
  if (scale.retention == "constant") {
    scale.gamma =
        keys.Real("osgm_decay_gamma",
                  {.min = kScaleGamma.min, .max = kScaleGamma.max, .absent = absent(kGamma)});
  }
  return scale;
}

// Nothing for a model that is its plain backbone.
std::optional<DeltaScale> ReadOsdn(KeyReader& keys, const Habits& habits) {
  if (!keys.Flag("use_osgm", habits.use_osgm)) {
    keys.IgnorePrefix("osgm_");
    keys.Ignore({"gate_aware_hypergradient"});
    return std::nullopt;
  }
  DeltaScale scale = ReadScale(keys, habits);
  // Experiments of the authors, each with another function.
  keys.MustBe("osgm_d_decay_source", "osgm", "the retention is the scale's own");
  for (const char* key : {"gate_aware_hypergradient", "osgm_post_gate_regret",
                          "osgm_post_gate_residual", "osgm_post_gate_use_remaining"}) {
    keys.MustBe(key, false, "this variant of the gradient is not served");
  }
  keys.MustBe("osgm_post_gate_clamp_min", nullptr, "this variant of the gradient is not served");
  // They belong to modes that are not served; osgm_freeze says what training left as it was.
  keys.Ignore({"osgm_decay_gamma", "osgm_ema_alpha", "osgm_ema_normalize", "osgm_freeze",
               "osgm_post_gate_regret_chunk_size"});
  return scale;
}

}  // namespace

ModelConfig ReadOsdnDeltaNet(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/24);
  DeltaMixer mixer = ReadDeltaNetMixer(keys, model.config.hidden_size);
  mixer.scale = ReadOsdn(keys, {.use_osgm = false,
                                .absent_is_default = true,
                                .null_is_default = true,
                                .decay_mode = "none"});
  return WithDeltaLayers(std::move(model), mixer);
}

ModelConfig ReadOsdnGatedDeltaNet(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/21);
  DeltaMixer mixer = ReadGatedDeltaMixer(keys);
  mixer.scale = ReadOsdn(keys, {.use_osgm = std::nullopt,
                                .absent_is_default = false,
                                .null_is_default = false,
                                .decay_mode = nullptr});
  return WithDeltaLayers(std::move(model), mixer);
}

ModelConfig ReadOsdnKda(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/24);
  DeltaMixer mixer = ReadKdaMixer(keys);
  mixer.scale = ReadOsdn(keys, {.use_osgm = true,
                                .absent_is_default = true,
                                .null_is_default = false,
                                .decay_mode = "constant"});
  return WithDeltaLayers(std::move(model), mixer);
}

void FitOsdn(const TensorFiles& files, ModelConfig* config) {
  for (Block& block : config->blocks) {
    if (block.spec.type != "delta" || block.spec.IsNull("scale.gradient")) continue;
    // DeltaNet and Gated DeltaNet store a constant retention as a tensor, and run with that.
    if (block.spec.Word("scale.retention") == "constant" &&
        files.Find(TheirName(block.names, "retention_logit")) != nullptr) {
      for (auto& [name, value] : block.spec.params) {
        if (name == "scale.retention") value = "learned";
        if (name == "scale.gamma") value = std::monostate();
      }
    }
    for (const char* ours : {"retention.weight", "retention.bias", "retention_logit"}) {
      RepeatPerHead(files, ours, 1, &block);
    }
  }
}

void FitOsdnKda(const TensorFiles& files, ModelConfig* config) {
  FitKda(files, config);
  FitOsdn(files, config);
}

}  // namespace eddy
