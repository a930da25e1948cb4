// All tensors of a model's folder: model.safetensors, or the files that
// model.safetensors.index.json lists.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/safetensors.h"

namespace eddy {

// One tensor and the file that holds it.
struct StoredTensor {
  const SafetensorsFile* file = nullptr;
  const TensorInfo* info = nullptr;
};

// Move-only, immutable; any thread. The files stay mapped while this lives.
class TensorFiles {
 public:
  // NotFound, or InvalidArgument with one line that names the file and what is wrong in it. A file
  // outside the folder is never opened, but links in it are followed.
  static absl::StatusOr<TensorFiles> Open(const std::string& model_dir);
  // The same, but appends all faults and holds what could be opened.
  static TensorFiles Open(const std::string& model_dir, std::vector<absl::Status>* faults);

  // Whether all files are here; if not, a tensor that is not found may still exist.
  bool complete() const { return complete_; }
  // What errors about the whole call it.
  const std::string& name() const { return name_; }
  // By file, then by place in the file: the order in which reading is fastest.
  std::span<const StoredTensor> tensors() const { return tensors_; }
  const StoredTensor* Find(const std::string& tensor) const;  // null: there is none

 private:
  void List();

  bool complete_ = false;
  std::string name_;
  std::vector<SafetensorsFile> files_;
  std::vector<StoredTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> by_name_;
};

}  // namespace eddy
