// From the tensors of a model's files to weights on the device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/float_formats.h"
#include "engine/model_config.h"
#include "engine/sha256.h"
#include "engine/tensor_files.h"
#include "kernels/device.h"

namespace eddy {

// The weights of one layer, or of the ends of the model, and what the files call them.
struct WeightGroup {
  std::vector<Field> fields = {};
  std::vector<NameRule> names = {};
};

// The rule for `ours`; null if none fits.
const NameRule* RuleFor(std::span<const NameRule> rules, const std::string& ours);
// What the files call `ours`; empty if no rule fits.
std::string TheirName(std::span<const NameRule> rules, const std::string& ours);

// Which tensor becomes which weight, all checked but for the numbers themselves. Plain data; refers
// to the TensorFiles it was made from.
struct WeightPlan {
  struct Piece {
    const StoredTensor* source = nullptr;  // null: all zero
    FloatFormat format = FloatFormat::kF32;
    int64_t first_element = 0;  // of the source
    int64_t elements = 0;       // of the source
    int64_t heads = 1;          // as many parts of the source, each of which
    int64_t repeats = 1;        // becomes so many of the field's, side by side
    Field field = {};
    int64_t offset = 0;  // bytes, from the start of the device's memory for weights
  };
  std::vector<std::vector<Piece>> groups = {};  // as the fields of the WeightGroups
  int64_t bytes = 0;                            // that all of them take on the device
  int64_t parameters = 0;
};

// Every field gets a tensor of its shape, and every tensor is used or in `unused`. InvalidArgument
// with one line that names the file and the tensors: missing, unexpected, of wrong shape or type.
absl::StatusOr<WeightPlan> PlanWeights(const TensorFiles& files,
                                       std::span<const WeightGroup> groups,
                                       std::span<const std::string> unused);
// The same, but appends a fault for each tensor. A weight that has one is part of the sums and of
// no group. While files are not complete(), none is called missing.
WeightPlan PlanWeights(const TensorFiles& files, std::span<const WeightGroup> groups,
                       std::span<const std::string> unused, std::vector<absl::Status>* faults);

// What was loaded: memory and the views of it, group by group. Owned by the model.
struct Weights {
  Buffer memory = {};
  std::vector<std::vector<TensorView>> groups = {};
  // Of names, types, shapes and bytes of the tensors that are used, whatever files they lie in.
  Sha256::Digest digest = {};
};

// Reads, converts and uploads; logs how far it is. InvalidArgument, naming the tensor, if a number
// is not finite; ResourceExhausted or Unavailable from the device.
absl::StatusOr<Weights> LoadWeights(const WeightPlan& plan, Device* device);

}  // namespace eddy
