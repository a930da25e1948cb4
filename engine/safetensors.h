// Reads safetensors files, strictly: https://github.com/huggingface/safetensors (format section).
// Eight bytes give the length of a JSON header, which gives each tensor's type, shape and place;
// the tensors follow without holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eddy {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct TensorInfo {
  std::string name = {};
  std::string dtype = {};  // as in the file: "F32", "BF16", "F16", ...
  std::vector<int64_t> shape = {};
  uint64_t begin = 0, end = 0;  // bytes of the whole file
};

// The tensors of a file of `file_bytes` bytes, in the order of their places; `header` is its
// beginning, all of it or at least to the end of the header. InvalidArgument, naming `file` and the
// tensor, unless header and length agree in every respect: the ranges must fill the file without
// hole or overlap, and each be as long as type and shape say. Places need not be aligned.
absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::span<const std::byte> header,
                                                               uint64_t file_bytes,
                                                               const std::string& file);

// A file mapped for reading while this lives. Move-only, immutable; any thread. A file that another
// program cuts short meanwhile ends the process with SIGBUS, as with every mapped file.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  std::span<const TensorInfo> tensors() const { return tensors_; }
  // Not aligned to anything.
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const {
    return map_.subspan(tensor.begin, tensor.end - tensor.begin);
  }
  // Says that `tensor` will not be looked at again soon, so that its pages need no memory.
  void Release(const TensorInfo& tensor) const;

 private:
  SafetensorsFile(std::string path, std::span<const std::byte> map)
      : path_(std::move(path)), map_(map) {}

  std::string path_;
  std::span<const std::byte> map_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace eddy
