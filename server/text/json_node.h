// A place in a JSON file that knows its name, for errors that say where and what.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eddy {

// Cheap to copy but for its path. The parsed file outlives it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json* value, std::string path) : value_(value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }
  // The member or element; null where there is none.
  JsonNode operator[](const std::string& key) const;
  JsonNode At(size_t index) const;
  size_t size() const { return value_->size(); }

  // "<path> is <value>; <expected>".
  absl::Status Error(const std::string& expected) const;
  // Not OK if this is no object, or has a key that is not among `keys`.
  absl::Status CheckKeys(std::initializer_list<const char*> keys) const;
  absl::Status CheckArray() const;
  absl::StatusOr<std::string> String() const;
  absl::StatusOr<bool> Bool() const;
  absl::StatusOr<bool> BoolOr(bool if_null) const;
  // An integer from `low` to `high`.
  absl::StatusOr<int64_t> Int(int64_t low, int64_t high) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace eddy
