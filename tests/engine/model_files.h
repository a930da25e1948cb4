// Model folders for tests: made in a temporary place, and removed with it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/safetensors.h"
#include "nlohmann/json.hpp"

namespace eddy {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "eddy_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  ASSERT_TRUE(out.good()) << path;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// One tensor to be written; `data` may be shorter than shape and dtype say, then zeros follow.
struct TestTensor {
  std::string name;
  std::string dtype = "F32";
  std::vector<int64_t> shape = {};
  std::string data = {};
  int64_t bytes() const {
    int64_t all = dtype == "F32" || dtype == "I32" ? 4 : 2;
    for (int64_t dim : shape) all *= dim;
    return all;
  }
};

inline std::string FloatBytes(const std::vector<float>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A header before which its length stands.
inline std::string WithLength(const std::string& header) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes + header;
}

inline std::string SafetensorsHeader(const std::vector<TestTensor>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t at = 0;
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.bytes()}}};
    at += tensor.bytes();
  }
  return WithLength(header.dump());
}

inline std::string SafetensorsBytes(const std::vector<TestTensor>& tensors) {
  std::string bytes = SafetensorsHeader(tensors);
  for (const TestTensor& tensor : tensors) {
    bytes += tensor.data;
    bytes.append(static_cast<size_t>(tensor.bytes()) - tensor.data.size(), '\0');
  }
  return bytes;
}

// The same, but all data is a hole in the file, which takes no room on the disk.
inline void WriteHollowSafetensors(const std::string& path,
                                   const std::vector<TestTensor>& tensors) {
  const std::string header = SafetensorsHeader(tensors);
  WriteFile(path, header);
  uint64_t all = header.size();
  for (const TestTensor& tensor : tensors) all += static_cast<uint64_t>(tensor.bytes());
  std::filesystem::resize_file(path, all);
}

// The tensors of a file, with their data.
inline std::vector<TestTensor> ReadTensors(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  std::vector<TestTensor> tensors;
  if (!file.ok()) return tensors;
  for (const TensorInfo& info : file->tensors()) {
    const auto bytes = file->Bytes(info);
    tensors.push_back({info.name, info.dtype, info.shape,
                       std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
  }
  return tensors;
}

}  // namespace eddy
