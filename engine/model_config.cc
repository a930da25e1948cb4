#include "engine/model_config.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/adapters/adapter.h"
#include "engine/json_text.h"
#include "kernels/layer_types.h"

namespace eddy {
namespace {

std::string ToText(const LayerSpec::Value& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return absl::StrCat(*number);
  if (const auto* real = std::get_if<double>(&value)) return absl::StrCat(*real);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* word = std::get_if<std::string>(&value)) return absl::StrCat("\"", *word, "\"");
  return "null";
}

// What is allowed, if `value` is not.
std::optional<std::string> Against(const ParamRule& rule, const LayerSpec::Value& value) {
  if (std::holds_alternative<std::monostate>(value)) {
    return rule.nullable ? std::nullopt : std::optional<std::string>("must not be null");
  }
  const auto in_range = [&](double number) { return number >= rule.min && number <= rule.max; };
  const auto* whole = std::get_if<int64_t>(&value);
  const auto* real = std::get_if<double>(&value);
  const auto* word = std::get_if<std::string>(&value);
  switch (rule.kind) {
    case ParamRule::kInt:
      if (whole != nullptr && in_range(static_cast<double>(*whole))) return std::nullopt;
      return absl::StrCat("must be a whole number from ", rule.min, " to ", rule.max);
    case ParamRule::kReal:
      if (whole != nullptr && in_range(static_cast<double>(*whole))) return std::nullopt;
      if (real != nullptr && in_range(*real)) return std::nullopt;
      return absl::StrCat("must be a number from ", rule.min, " to ", rule.max);
    case ParamRule::kFlag:
      if (std::holds_alternative<bool>(value)) return std::nullopt;
      return std::string("must be true or false");
    case ParamRule::kWord:
      break;
  }
  std::string list;
  for (const char* allowed : rule.words) {
    if (word != nullptr && *word == allowed) return std::nullopt;
    absl::StrAppend(&list, list.empty() ? "" : ", ", allowed);
  }
  return absl::StrCat("supported: ", list);
}

// What is wrong with `spec`, or nothing.
std::optional<std::string> FaultOf(const LayerSpec& spec) {
  const LayerType* const type = FindLayerType(spec.type);
  if (type == nullptr) return absl::StrCat("no layer type is called \"", spec.type, "\"");
  size_t known = 0;
  for (const ParamRule& rule : type->params) {
    bool found = false;
    for (const auto& [name, value] : spec.params) {
      if (name != rule.name) continue;
      found = true;
      ++known;
      if (auto fault = Against(rule, value)) {
        return absl::StrCat(name, " is ", ToText(value), ", ", *fault);
      }
    }
    if (!found) return absl::StrCat("the parameter ", rule.name, " is missing");
  }
  if (known != spec.params.size()) return std::string("a parameter is unknown or given twice");
  return type->conflict == nullptr ? std::nullopt : type->conflict(spec);
}

// The tokenizer of a foreign model is whatever stands beside its config.
void FindTokenizer(const std::filesystem::path& dir, ModelConfig* config) {
  std::error_code ignored;
  for (const auto& [kind, file] : {std::pair("tokenizer.json", "tokenizer.json"),
                                   std::pair("sentencepiece", "tokenizer.model")}) {
    if (!std::filesystem::exists(dir / file, ignored)) continue;
    config->tokenizer_kind = kind;
    config->tokenizer_file = file;
    return;
  }
}

std::vector<absl::Status> FaultsOf(const ModelConfig& config, const std::string& file) {
  std::vector<absl::Status> faults;
  for (const Block& block : config.blocks) {
    const auto fault = FaultOf(block.spec);
    if (!fault) continue;
    faults.push_back(absl::InvalidArgumentError(absl::StrCat(file, ": layer ", block.layer, ", ",
                                                             block.mlp ? "mlp" : "mixer", " ",
                                                             block.spec.type, ": ", *fault)));
  }
  return faults;
}

// Appends to `faults`; if it does, what is returned cannot be used.
ModelConfig Parse(std::string_view text, const std::string& file,
                  std::vector<absl::Status>* faults) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(text, file);
  if (!json.ok()) {
    faults->push_back(json.status());
    return {};
  }
  KeyReader keys(file, *json);
  const std::string model_type = keys.Status().ok() ? keys.Text("model_type") : "";
  const auto take_faults = [&] {
    faults->insert(faults->end(), keys.Faults().begin(), keys.Faults().end());
    return !keys.Status().ok();
  };
  if (take_faults()) return {};
  std::string supported;
  for (const Adapter& adapter : Adapters()) {
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", adapter.model_type);
    if (model_type != adapter.model_type) continue;
    ModelConfig config = adapter.read(keys);
    keys.End();
    if (take_faults()) return {};
    config.model_type = model_type;
    const std::vector<absl::Status> more = FaultsOf(config, file);
    faults->insert(faults->end(), more.begin(), more.end());
    return config;
  }
  keys.Refuse("model_type", absl::StrCat("supported: ", supported));
  take_faults();
  return {};
}

}  // namespace

absl::Status CheckModelConfig(const ModelConfig& config, const std::string& file) {
  const std::vector<absl::Status> faults = FaultsOf(config, file);
  return faults.empty() ? absl::OkStatus() : faults.front();
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, const std::string& file) {
  std::vector<absl::Status> faults;
  ModelConfig config = Parse(text, file, &faults);
  if (!faults.empty()) return faults.front();
  return config;
}

void FitToFiles(const TensorFiles& files, ModelConfig* config) {
  for (const Adapter& adapter : Adapters()) {
    if (config->model_type == adapter.model_type && adapter.fit != nullptr) {
      adapter.fit(files, config);
    }
  }
}

std::optional<ModelConfig> ReadModelConfig(const std::string& model_dir,
                                           std::vector<absl::Status>* faults) {
  const std::filesystem::path dir(model_dir);
  const std::string file = dir / "config.json";
  const absl::StatusOr<std::string> text = ReadJsonText(file);
  if (!text.ok()) {
    faults->push_back(text.status());
    return std::nullopt;
  }
  const size_t before = faults->size();
  ModelConfig config = Parse(*text, file, faults);
  if (faults->size() > before) return std::nullopt;
  if (config.model_type != "eddy") FindTokenizer(dir, &config);
  std::error_code ignored;
  if (!config.tokenizer_file.empty() &&
      !std::filesystem::exists(dir / config.tokenizer_file, ignored)) {
    faults->push_back(
        absl::NotFoundError(absl::StrCat(file, ": tokenizer.file is \"", config.tokenizer_file,
                                         "\", there is no such file in the folder")));
  }
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir) {
  std::vector<absl::Status> faults;
  std::optional<ModelConfig> config = ReadModelConfig(model_dir, &faults);
  if (!faults.empty()) return faults.front();
  return *std::move(config);
}

}  // namespace eddy
