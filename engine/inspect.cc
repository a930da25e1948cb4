#include "engine/inspect.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/blueprint.h"
#include "engine/capacity.h"
#include "engine/float_formats.h"
#include "engine/tensor_files.h"
#include "engine/weights.h"

namespace eddy {
namespace {

using Faults = std::vector<absl::Status>;

// Without the tokenizer's code, which the engine does not know: the file must be there and hold
// something.
void CheckTokenizer(const ModelInfo& model, Faults* faults) {
  if (model.tokenizer_file.empty()) return;
  std::error_code ignored;
  // That it is missing, reading the config has said.
  if (!std::filesystem::exists(model.tokenizer_file, ignored)) return;
  std::ifstream in(model.tokenizer_file, std::ios::binary);
  if (std::filesystem::is_regular_file(model.tokenizer_file, ignored) && in.get() != EOF) return;
  faults->push_back(absl::InvalidArgumentError(
      absl::StrCat(model.tokenizer_file, ": must be a file that can be read and is not empty")));
}

bool Finite(const StoredTensor& tensor, FloatFormat format) {
  constexpr int64_t kPart = 1 << 20;  // numbers
  std::vector<std::byte> floats(kPart * sizeof(float));
  const std::span<const std::byte> bytes = tensor.file->Bytes(*tensor.info);
  const auto part_bytes = static_cast<size_t>(kPart * SizeOf(format));
  for (size_t at = 0; at < bytes.size(); at += part_bytes) {
    const auto part = bytes.subspan(at, std::min(part_bytes, bytes.size() - at));
    const size_t numbers = part.size() / static_cast<size_t>(SizeOf(format));
    if (!ConvertFloats(format, part, DType::kF32,
                       std::span(floats).first(numbers * sizeof(float)))) {
      return false;
    }
  }
  return true;
}

// The numbers of all tensors that are used.
void CheckNumbers(const WeightPlan& plan, Faults* faults) {
  std::set<const StoredTensor*> seen;
  for (const auto& group : plan.groups) {
    for (const WeightPlan::Piece& piece : group) {
      if (piece.source == nullptr || !seen.insert(piece.source).second) continue;
      const StoredTensor& tensor = *piece.source;
      if (!Finite(tensor, piece.format)) {
        faults->push_back(absl::InvalidArgumentError(absl::StrCat(
            tensor.file->path(), ": ", tensor.info->name, " holds a number that is not finite")));
      }
      tensor.file->Release(*tensor.info);
    }
  }
}

void CheckCapacity(const InspectOptions& options, const Blueprint& blueprint, const KvLayout& kv,
                   const Device& device, Inspection* found, Faults* faults) {
  const MemoryNeeds needs = NeedsOf(blueprint, found->weight_bytes, kv, device.traits());
  found->free_bytes = options.memory.value_or(device.free_bytes());
  absl::StatusOr<Capacity> capacity =
      DivideMemory(options.load, needs, found->free_bytes, device.backend());
  if (capacity.ok()) {
    found->capacity = *std::move(capacity);
  } else {
    faults->push_back(capacity.status());
  }
}

void InspectModel(const InspectOptions& options, const TensorFiles& files, ModelConfig config,
                  Inspection* found, Faults* faults) {
  const std::unique_ptr<Device> device = OpenCpuDevice({.states = options.states});
  const DeviceTraits traits = device->traits();
  FitToFiles(files, &config);
  const Blueprint blueprint = MakeBlueprint(std::move(config), traits);
  if (absl::Status fits = CheckStateType(blueprint, traits); !fits.ok()) faults->push_back(fits);
  for (const Block& block : blueprint.config.blocks) {
    const std::string& type = block.spec.type;
    std::vector<std::string>& mlps = found->mlps;
    if (block.mlp && std::find(mlps.begin(), mlps.end(), type) == mlps.end()) mlps.push_back(type);
  }
  const WeightPlan plan =
      PlanWeights(files, blueprint.weights, blueprint.config.unused_tensors, faults);
  const KvLayout kv(blueprint.needs, options.load.kv_page_tokens);
  found->model = InfoOf(options.load.model_dir, blueprint, plan.parameters, kv, traits);
  found->weight_bytes = plan.bytes;
  found->page_bytes = kv.page_bytes();
  CheckTokenizer(*found->model, faults);
  if (options.weights) CheckNumbers(plan, faults);
  CheckCapacity(options, blueprint, kv, *device, found, faults);
}

}  // namespace

Inspection Inspect(const InspectOptions& options) {
  Inspection found;
  Faults faults;
  std::optional<ModelConfig> config = ReadModelConfig(options.load.model_dir, &faults);
  const TensorFiles files = TensorFiles::Open(options.load.model_dir, &faults);
  found.tensors = static_cast<int64_t>(files.tensors().size());
  if (config) InspectModel(options, files, *std::move(config), &found, &faults);
  for (const absl::Status& fault : faults) found.problems.emplace_back(fault.message());
  return found;
}

}  // namespace eddy
