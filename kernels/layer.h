// The contract of a layer: what the config says of it, what it wants to be given, what it does.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/readout.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// One residual block, x <- x + f(norm(x)), for every row of a step at once. Engine thread only.
class Layer {
 public:
  virtual ~Layer() = default;
  // Rewrites `x` [rows, d_model] in place and advances the layer's state of each sequence by its
  // rows. Enqueues on step.stream and returns: no waiting, no allocation. Rows of sequences whose
  // slot is kNoSlot get a zero contribution of the rule, and no state is touched for them.
  virtual void Forward(const Step& step, TensorView x) = 0;
  // Writes what the layer has kept pending into the persistent fields of the step's sequences
  // (which have no rows here). Called before a record is copied, never in between. Layers that keep
  // nothing pending leave it alone.
  virtual void Flush(const Step& step) { static_cast<void>(step); }
};

// What the model's config says about one block. Every parameter is written down, null ones too:
// there are no defaults below the adapters. Parameters of a nested object are named with a dot
// ("scale.eta"); the object's own name does not appear.
struct LayerSpec {
  using Value = std::variant<std::monostate, int64_t, double, bool, std::string>;
  std::string type;
  int64_t d_model = 0;
  double norm_eps = 0;
  std::vector<std::pair<std::string, Value>> params;
  // These CHECK that it is there: the loader has compared `params` with the type's rules.
  bool IsNull(std::string_view name) const;
  int64_t Int(std::string_view name) const;
  double Real(std::string_view name) const;  // an integer counts as a real
  bool Flag(std::string_view name) const;
  const std::string& Word(std::string_view name) const;
};

// What one parameter may be.
struct ParamRule {
  enum Kind { kInt, kReal, kFlag, kWord };
  const char* name;
  Kind kind;
  double min = 0, max = 0;                  // numbers, both ends included
  std::span<const char* const> words = {};  // kWord: what may stand there
  bool nullable = false;
};

// One tensor that a layer wants: a weight, a field of a sequence's record, or of a page.
struct Field {
  std::string name;
  DType dtype = DType::kF32;
  std::array<int64_t, 4> shape = {1, 1, 1, 1};
  // State only. What a fresh slot holds: `initial_weight` if there is one (OSDN's preconditioner is
  // learned), or e to the power of it if it is a logarithm (a learned Kalman precision, which must
  // be positive), else `initial` (a Kalman precision starts at one).
  float initial = 0.0f;
  std::string initial_weight = {};
  bool initial_is_log = false;
  // State only. Means nothing after Flush, so a checkpoint leaves it out.
  bool transient = false;
};

// What a layer wants to be given. The engine loads, checks and uploads it, so making a layer cannot
// fail.
struct LayerNeeds {
  // Named as the layer calls them: "norm.weight" is the block's input norm (natively
  // layers.{i}.mixer_norm.weight or mlp_norm.weight), all others are natively
  // layers.{i}.mixer.{name} or layers.{i}.mlp.{name}. Unused dimensions of `shape` are 1 at the
  // end.
  std::vector<Field> weights = {};
  std::vector<Field> state = {};  // per sequence, of fixed size: fields of its record
  // Per token: fields of a page, [rows_per_page, shape...]; attention. At most three dimensions.
  std::vector<Field> kv = {};
  // Rows read no further back than so many positions, themselves included; 0: all of the past.
  int64_t kv_window = 0;
  // One block, shared by all layers in turn: scratch_bytes + rows of a step *
  // scratch_bytes_per_row.
  int64_t scratch_bytes = 0, scratch_bytes_per_row = 0;
  // What it writes to Step::readouts when a step asks; rows of padding sequences get zeros.
  std::vector<Readout> readouts = {};
};

// What a layer must know of a device before it exists.
struct DeviceTraits {
  int pending_updates = 0;       // length of the write-back ring; 0: states are written in place
  DType matrices = DType::kF32;  // type in which weights of two dimensions and more are given
  DType states = DType::kF32;    // type of the states of delta rules
  DType kv = DType::kF32;        // type of keys and values in pages
  int logit_rows = 64;           // rows of logits that exist at once: what Ends runs over in one go
  bool records_steps = false;    // Device::Record makes a step cheaper to enqueue
};

// What a layer is given, each list in the order of LayerNeeds.
struct LayerParts {
  std::span<const TensorView> weights = {};
  std::span<const FieldView> state = {};
  std::span<const FieldView> kv = {};
  void* scratch = nullptr;
};

// What a layer was given under the name that it asked by; null if it did not ask. `parts` must be
// the answer to `needs`.
const TensorView* FindWeight(const LayerNeeds& needs, const LayerParts& parts,
                             std::string_view name);
const FieldView* FindState(const LayerNeeds& needs, const LayerParts& parts, std::string_view name);
const FieldView* FindKv(const LayerNeeds& needs, const LayerParts& parts, std::string_view name);

// A row of the table of layer types.
struct LayerType {
  const char* name;                   // the word in config.json
  std::span<const ParamRule> params;  // all required, no others allowed
  // Says which parameters do not fit together; null if none can.
  std::optional<std::string> (*conflict)(const LayerSpec&);
  LayerNeeds (*needs)(const LayerSpec&, const DeviceTraits&);
  std::unique_ptr<Layer> (*make_cpu)(const LayerSpec&, const LayerParts&);
};

}  // namespace eddy
