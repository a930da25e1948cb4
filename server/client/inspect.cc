// eddy model inspect: works on files, without a server.
#include "engine/inspect.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/flags.h"
#include "nlohmann/json.hpp"
#include "server/client/command.h"

namespace eddy::client {
namespace {

constexpr int kProblemsStatus = 1;

std::string Bytes(int64_t bytes) {
  const std::string text = FormatBytes(bytes);
  return absl::StrCat(text,
                      absl::ascii_isdigit(static_cast<unsigned char>(text.back())) ? " bytes" : "");
}

std::string Layers(const Inspection& found) {
  std::string text = absl::StrJoin(found.model->layers, ", ", [](std::string* out, const auto& l) {
    absl::StrAppend(out, l.second, " ", l.first);
  });
  for (const std::string& mlp : found.mlps) absl::StrAppend(&text, ", each with ", mlp);
  return text;
}

void PrintModel(const Inspection& found, std::ostream& out) {
  const ModelInfo& model = *found.model;
  out << "type: " << model.model_type << "\nlayers: " << Layers(found)
      << "\nparameters: " << model.parameters << " in " << found.tensors << " tensors"
      << "\nvocabulary: " << model.vocab_size << "\nhidden size: " << model.hidden_size
      << "\nweights: " << model.weight_type << ", " << Bytes(found.weight_bytes)
      << "\nstate: " << model.state_type << ", " << Bytes(model.record_bytes) << " per sequence\n";
  if (found.page_bytes > 0) {
    out << "attention: " << Bytes(model.kv_bytes_per_token) << " per token, "
        << Bytes(found.page_bytes) << " per page\n";
  }
  out << "tokenizer: "
      << (model.tokenizer_kind.empty() ? "none, token ids only"
                                       : absl::StrCat(model.tokenizer_kind, " (contents not read)"))
      << "\n";
  if (!found.capacity) return;
  const Capacity& capacity = *found.capacity;
  out << "in " << Bytes(found.free_bytes) << " of memory: " << capacity.slots << " slots";
  if (capacity.pages > 0) {
    out << ", " << capacity.pages << " pages of " << capacity.rows_per_page << " tokens";
  }
  out << " (state " << Bytes(capacity.state_bytes) << ", attention " << Bytes(capacity.kv_bytes)
      << ", workspace " << Bytes(capacity.workspace_bytes) << ")\n";
}

nlohmann::ordered_json ToJson(const Inspection& found) {
  nlohmann::ordered_json json;
  json["problems"] = found.problems;
  json["tensors"] = found.tensors;
  if (found.model) {
    const ModelInfo& model = *found.model;
    json["model_type"] = model.model_type;
    json["layers"] = nlohmann::ordered_json::array();
    for (const auto& [type, count] : model.layers) {
      json["layers"].push_back({{"type", type}, {"count", count}});
    }
    json["mlps"] = found.mlps;
    json["parameters"] = model.parameters;
    json["vocab_size"] = model.vocab_size;
    json["hidden_size"] = model.hidden_size;
    json["weight_type"] = model.weight_type;
    json["weight_bytes"] = found.weight_bytes;
    json["state_type"] = model.state_type;
    json["state_bytes_per_sequence"] = model.record_bytes;
    json["kv_bytes_per_token"] = model.kv_bytes_per_token;
    json["kv_bytes_per_page"] = found.page_bytes;
    json["tokenizer_kind"] = model.tokenizer_kind;
    json["free_bytes"] = found.free_bytes;
  }
  if (found.capacity) {
    json["slots"] = found.capacity->slots;
    json["pages"] = found.capacity->pages;
    json["state_bytes"] = found.capacity->state_bytes;
    json["kv_bytes"] = found.capacity->kv_bytes;
    json["workspace_bytes"] = found.capacity->workspace_bytes;
  }
  return json;
}

class ModelInspect : public Command {
 public:
  void AddFlags(FlagSet* flags) override {
    flags->Add("memory", &options_.memory, flag::Bytes(1, int64_t{1} << 50),
               "free memory to reckon with; default: what this machine has free");
    flags->Add("weights", &options_.weights, flag::Bool(),
               "read all numbers too, and look for NaN and infinity");
    flags->Add("state_type", &state_type_, flag::OneOf({"float32", "bfloat16"}),
               "type of states of the server that would serve it");
  }

  std::vector<std::string> Prepare(const CommonFlags&, const FlagSet&,
                                   const std::vector<std::string>& words) override {
    if (words.size() != 1) return {"model inspect takes one folder"};
    options_.load.model_dir = words[0];
    if (state_type_ == "bfloat16") options_.states = DType::kBF16;
    return {};
  }

  grpc::Status Run(Connection*, Output* output) override {
    const Inspection found = Inspect(options_);
    if (output->json) {
      // Names in files need not be UTF-8.
      output->out << ToJson(found).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                  << "\n";
    } else {
      if (found.model) PrintModel(found, output->out);
      for (const std::string& problem : found.problems)
        output->out << "problem: " << problem << "\n";
      if (found.problems.empty()) output->out << "no problems\n";
    }
    exit_status_ = found.problems.empty() ? 0 : kProblemsStatus;
    return grpc::Status::OK;
  }

  int exit_status() const override { return exit_status_; }

 private:
  InspectOptions options_;
  std::string state_type_ = "float32";
  int exit_status_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeModelInspect() { return std::make_unique<ModelInspect>(); }

}  // namespace eddy::client
