// Kaczmarz linear attention (Zou, Ren, Liu, arXiv 2605.08587): Gated DeltaNet's names and keys, and
// the size of the step named by `qk_norm`, in the words of the authors' code.
#include <array>
#include <string>
#include <utility>

#include "engine/adapters/fla.h"

namespace eddy {
namespace {

// With s = sigmoid(W_b x + b_b).
struct StepOption {
  const char* qk_norm;
  const char* query_norm;
  const char* key_norm;
  const char* step;
  bool has_bias;  // the options without s have no W_b and b_b at all
  bool has_eps;
};

constexpr std::array kStepOptions = {
    StepOption{"relaxed_kaczmarz_q_norm", "l2", "none", "kaczmarz", true, true},
    StepOption{"relaxed_kaczmarz", "none", "none", "kaczmarz", true, true},
    StepOption{"kaczmarz", "none", "none", "kaczmarz_full", false, true},
    StepOption{"k_norm_only", "none", "none", "kaczmarz_full", false, true},
    StepOption{"longhorn", "none", "none", "longhorn", true, false},
    StepOption{"learned_scalar", "none", "none", "kaczmarz_learned", true, true},
    StepOption{"no_norm", "none", "none", "sigmoid", true, false},
    StepOption{"l2", "l2", "l2", "sigmoid", true, false},
};

}  // namespace

ModelConfig ReadKaczmarz(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/21);
  DeltaMixer mixer = ReadGatedDeltaMixer(keys);
  const std::string qk_norm =
      keys.Word("qk_norm",
                {"relaxed_kaczmarz_q_norm", "relaxed_kaczmarz", "kaczmarz", "k_norm_only",
                 "longhorn", "learned_scalar", "no_norm", "l2"},
                "relaxed_kaczmarz_q_norm");
  const double eps = keys.Real("kaczmarz_eps", {.min = 1e-12, .max = 1, .absent = 1e-6});
  for (const StepOption& option : kStepOptions) {
    if (qk_norm != option.qk_norm) continue;
    mixer.query_norm = option.query_norm;
    mixer.key_norm = option.key_norm;
    mixer.step = option.step;
    mixer.step_bias = option.has_bias;
    if (option.has_eps) mixer.step_eps = eps;
  }
  return WithDeltaLayers(std::move(model), mixer);
}

}  // namespace eddy
