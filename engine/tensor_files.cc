#include "engine/tensor_files.h"

#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/json_text.h"
#include "engine/key_reader.h"

namespace eddy {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

// File name -> the tensors that the index expects in it.
using Shards = std::map<std::string, std::set<std::string>>;

bool IsPlainName(const std::string& name) {
  return absl::EndsWith(name, ".safetensors") && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos &&
         name.front() != '.';
}

absl::StatusOr<Shards> ReadIndex(const std::string& path) {
  EDDY_ASSIGN_OR_RETURN(const std::string text, ReadJsonText(path));
  EDDY_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path));
  KeyReader keys(path, json);
  keys.Ignore({"metadata"});
  keys.Object("weight_map");
  keys.End();
  EDDY_RETURN_IF_ERROR(keys.Status());
  Shards shards;
  for (const auto& item : json.at("weight_map").items()) {
    if (!item.value().is_string() || !IsPlainName(item.value().get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": weight_map.", item.key().substr(0, 80), " is ", ShortDump(item.value()),
          ", must be the name of a .safetensors file in the same folder"));
    }
    shards[item.value().get<std::string>()].insert(item.key());
  }
  if (shards.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map is empty"));
  return shards;
}

// The file must hold exactly what the index says.
void CheckShard(const SafetensorsFile& file, std::set<std::string> expected,
                const std::string& index, std::vector<absl::Status>* faults) {
  for (const TensorInfo& tensor : file.tensors()) {
    if (expected.erase(tensor.name) == 1) continue;
    faults->push_back(
        absl::InvalidArgumentError(absl::StrCat(file.path(), ": holds ", ShortDump(tensor.name),
                                                ", which ", index, " does not place there")));
  }
  for (const std::string& tensor : expected) {
    faults->push_back(absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": lacks ", ShortDump(tensor), ", which ", index, " places there")));
  }
}

// The files of the folder; without an index, one of which nothing is expected.
absl::StatusOr<Shards> FindShards(const std::string& model_dir) {
  const std::filesystem::path dir(model_dir);
  std::error_code ignored;
  const bool single = std::filesystem::exists(dir / kSingle, ignored);
  const bool sharded = std::filesystem::exists(dir / kIndex, ignored);
  if (!single && !sharded) {
    return absl::NotFoundError(
        absl::StrCat(model_dir, ": holds neither ", kSingle, " nor ", kIndex));
  }
  if (single && sharded) {
    return absl::InvalidArgumentError(
        absl::StrCat(model_dir, ": holds both ", kSingle, " and ", kIndex, "; remove one"));
  }
  if (sharded) return ReadIndex(dir / kIndex);
  return Shards{{kSingle, {}}};
}

}  // namespace

TensorFiles TensorFiles::Open(const std::string& model_dir, std::vector<absl::Status>* faults) {
  const std::filesystem::path dir(model_dir);
  TensorFiles all;
  const absl::StatusOr<Shards> shards = FindShards(model_dir);
  if (!shards.ok()) {
    faults->push_back(shards.status());
    return all;
  }
  std::error_code ignored;
  const bool sharded = !std::filesystem::exists(dir / kSingle, ignored);
  all.name_ = dir / (sharded ? kIndex : kSingle);
  all.complete_ = true;
  for (const auto& [name, expected] : *shards) {
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(dir / name);
    if (!file.ok()) {
      faults->push_back(file.status());
      all.complete_ = false;
      continue;
    }
    if (sharded) CheckShard(*file, expected, all.name_, faults);
    all.files_.push_back(*std::move(file));
  }
  all.List();
  return all;
}

absl::StatusOr<TensorFiles> TensorFiles::Open(const std::string& model_dir) {
  std::vector<absl::Status> faults;
  TensorFiles all = Open(model_dir, &faults);
  if (!faults.empty()) return faults.front();
  return all;
}

void TensorFiles::List() {
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& info : file.tensors()) {
      by_name_.emplace(info.name, tensors_.size());
      tensors_.push_back({&file, &info});
    }
  }
}

const StoredTensor* TensorFiles::Find(const std::string& tensor) const {
  const auto it = by_name_.find(tensor);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace eddy
