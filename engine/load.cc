#include "engine/load.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/blueprint.h"
#include "engine/capacity.h"
#include "engine/device_executor.h"
#include "engine/json_text.h"
#include "kernels/layer_types.h"

namespace eddy {
namespace {

void LogCapacity(const LoadOptions& options, const Capacity& capacity, const MemoryNeeds& needs,
                 int64_t free_bytes) {
  Log(capacity.lowered ? LogLevel::kWarning : LogLevel::kInfo, "capacity",
      {{"slots", capacity.slots},
       {"max_sequences", options.max_sequences},
       {"lowered", capacity.lowered},
       {"max_rows_per_step", capacity.max_rows_per_step},
       {"free_bytes", free_bytes},
       {"memory_fraction", options.memory_fraction},
       {"weight_bytes", capacity.weight_bytes},
       {"workspace_bytes", capacity.workspace_bytes},
       {"record_bytes", needs.record},
       {"state_bytes", capacity.state_bytes},
       {"pages", capacity.pages},
       {"rows_per_page", capacity.rows_per_page},
       {"pages_per_sequence", capacity.pages_per_sequence},
       {"kv_bytes", capacity.kv_bytes}});
}

absl::Status NoMemory(const std::string& what) {
  return absl::ResourceExhaustedError(absl::StrCat("no memory for ", what));
}

// Layers and ends, with views of weights, records and pages.
absl::StatusOr<Model> MakeModel(const Blueprint& blueprint, Weights weights, const Records& records,
                                const KvPages& kv, const Capacity& capacity, Device* device) {
  const int rows = capacity.max_rows_per_step;
  Model::Memory memory;
  memory.scratch = device->Allocate(ScratchBytes(blueprint, rows));
  memory.activations = device->Allocate(rows * blueprint.ends.d_model * SizeOf(DType::kF32));
  if (!memory.scratch || !memory.activations) return NoMemory("the workspace");

  std::vector<Model::Block> blocks;
  for (size_t i = 0; i < blueprint.needs.size(); ++i) {
    const LayerSpec& spec = blueprint.config.blocks[i].spec;
    std::vector<FieldView> state;
    for (size_t f = 0; f < blueprint.needs[i].state.size(); ++f) {
      state.push_back(records.View(i, f));
    }
    std::vector<FieldView> pages;
    for (size_t f = 0; f < blueprint.needs[i].kv.size(); ++f) pages.push_back(kv.View(i, f));
    const LayerParts parts = {.weights = weights.groups[i],
                              .state = state,
                              .kv = pages,
                              .scratch = memory.scratch.data()};
    blocks.push_back({.layer = device->Make(*FindLayerType(spec.type), spec, parts),
                      .readouts = std::ssize(blueprint.needs[i].readouts)});
    if (blocks.back().layer == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the back end ", device->backend(), " has no version of the layer type ", spec.type));
    }
  }
  const std::vector<TensorView>& ends = weights.groups.back();
  const EndsParts parts = {.embedding = ends[0],
                           .final_norm = ends[1],
                           .head = blueprint.config.tie_embeddings ? ends[0] : ends[2]};
  std::unique_ptr<Ends> made = device->MakeEnds(blueprint.ends, parts, device->traits().logit_rows);
  if (made == nullptr) return NoMemory("embedding, head and sampler");
  const TensorView x = {.data = memory.activations.data(),
                        .shape = {rows, blueprint.ends.d_model, 1, 1}};
  memory.weights = std::move(weights.memory);
  return Model(std::move(memory), std::move(blocks), std::move(made), x);
}

std::vector<DeviceExecutor::BlockName> NamesOf(const ModelConfig& config) {
  std::vector<DeviceExecutor::BlockName> names;
  for (const Block& block : config.blocks) {
    names.push_back({.layer = block.layer, .type = block.spec.type});
  }
  return names;
}

// The config counts as a value, not as text: spaces and the order of keys change nothing.
absl::StatusOr<Sha256::Digest> Fingerprint(const std::string& model_dir,
                                           const Sha256::Digest& weights) {
  const std::string file = std::filesystem::path(model_dir) / "config.json";
  EDDY_ASSIGN_OR_RETURN(const std::string text, ReadJsonText(file));
  EDDY_ASSIGN_OR_RETURN(const nlohmann::json config, ParseJson(text, file));
  Sha256 hash;
  hash.AddText(config.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  hash.Add(std::as_bytes(std::span(weights)));
  return hash.Finish();
}

// Of the numbers of the model, and of the types and places of a checkpoint's.
uint64_t CheckpointHash(const ModelInfo& info) {
  uint64_t model = 0, layout = 0;
  std::memcpy(&model, info.fingerprint.data(), sizeof(model));
  std::memcpy(&layout, info.layout_fingerprint.data(), sizeof(layout));
  return model ^ layout;
}

}  // namespace

absl::StatusOr<DType> StoredWeightType(const std::string& model_dir) {
  // What is wrong with a folder is told in the same order as by LoadModel.
  EDDY_RETURN_IF_ERROR(ReadModelConfig(model_dir).status());
  EDDY_ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::Open(model_dir));
  uint64_t halves = 0, all = 0;
  for (const StoredTensor& tensor : files.tensors()) {
    const uint64_t bytes = tensor.info->end - tensor.info->begin;
    all += bytes;
    if (tensor.info->dtype == "BF16") halves += bytes;
  }
  return 2 * halves > all ? DType::kBF16 : DType::kF32;
}

absl::StatusOr<LoadedModel> LoadModel(const LoadOptions& options, Device* device) {
  const DeviceTraits traits = device->traits();
  EDDY_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(options.model_dir));
  EDDY_ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::Open(options.model_dir));
  FitToFiles(files, &config);
  Blueprint blueprint = MakeBlueprint(std::move(config), traits);
  EDDY_RETURN_IF_ERROR(CheckStateType(blueprint, traits));
  FitToDevice(*device, &blueprint);
  EDDY_ASSIGN_OR_RETURN(const WeightPlan plan,
                        PlanWeights(files, blueprint.weights, blueprint.config.unused_tensors));
  if (options.kv_page_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_page_tokens is ", options.kv_page_tokens, ", must be at least 1"));
  }
  KvLayout kv_layout(blueprint.needs, options.kv_page_tokens);
  const MemoryNeeds needs = NeedsOf(blueprint, plan.bytes, kv_layout, traits);
  const int64_t free_bytes = device->free_bytes();
  EDDY_ASSIGN_OR_RETURN(const Capacity capacity,
                        DivideMemory(options, needs, free_bytes, device->backend()));
  LogCapacity(options, capacity, needs, free_bytes);

  EDDY_ASSIGN_OR_RETURN(Weights weights, LoadWeights(plan, device));
  LoadedModel loaded = {
      .info = InfoOf(options.model_dir, blueprint, plan.parameters, kv_layout, traits),
      .capacity = capacity};
  EDDY_ASSIGN_OR_RETURN(loaded.info.fingerprint, Fingerprint(options.model_dir, weights.digest));

  EDDY_ASSIGN_OR_RETURN(const std::vector<std::byte> fresh,
                        MakeFreshRecord(device, blueprint.needs,
                                        std::span(weights.groups).first(blueprint.needs.size())));
  std::optional<Records> records =
      Records::Allocate(device, blueprint.needs, capacity.slots, fresh);
  if (!records) return NoMemory("the records");
  std::optional<KvPages> kv = KvPages::Allocate(device, std::move(kv_layout), capacity.pages);
  if (!kv) return NoMemory("the pages");
  std::optional<StepBuffers> steps =
      StepBuffers::Allocate(device, {.rows = capacity.max_rows_per_step,
                                     .sequences = capacity.slots,
                                     .pages = capacity.pages_per_sequence});
  Buffer logits = device->Allocate(traits.logit_rows * blueprint.ends.vocab * SizeOf(DType::kF32));
  std::optional<Readouts> readouts =
      Readouts::Allocate(device, blueprint.needs, capacity.max_rows_per_step);
  if (!steps || !logits || !readouts) return NoMemory("the workspace");
  EDDY_ASSIGN_OR_RETURN(Model model,
                        MakeModel(blueprint, std::move(weights), *records, *kv, capacity, device));
  if (const auto error = device->Finish()) return absl::UnavailableError(*error);

  auto executor = std::make_unique<DeviceExecutor>(
      DeviceExecutor::Parts{.device = device,
                            .model = std::move(model),
                            .records = *std::move(records),
                            .kv = *std::move(kv),
                            .steps = *std::move(steps),
                            .logit_rows = traits.logit_rows,
                            .logits = std::move(logits),
                            .readouts = *std::move(readouts),
                            .blocks = NamesOf(blueprint.config),
                            .vocab = blueprint.ends.vocab,
                            .pages_per_sequence = capacity.pages_per_sequence,
                            .model_hash = CheckpointHash(loaded.info)});
  if (options.record_steps && traits.records_steps) executor->RecordSteps(capacity.slots);
  if (const auto error = device->Finish()) return absl::UnavailableError(*error);
  for (const absl::string_view line : absl::StrSplit(device->choices(), '\n', absl::SkipEmpty())) {
    Log(LogLevel::kDebug, "device_choice", {{"choice", std::string(line)}});
  }
  loaded.executor = std::move(executor);
  return loaded;
}

}  // namespace eddy
