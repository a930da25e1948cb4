#include "server/text/json_node.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eddy {
namespace {

constexpr size_t kShownBytes = 80;

const nlohmann::json& NoValue() {
  static const nlohmann::json null;
  return null;
}

std::string Shown(const nlohmann::json& value) {
  // Never with what is in them: writing it out is recursive, and a file may nest endlessly.
  if (value.is_object()) return absl::StrCat("an object of ", value.size());
  if (value.is_array()) return absl::StrCat("a list of ", value.size());
  // Pure ASCII, so that it may be cut anywhere.
  std::string shown =
      value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  return shown.size() <= kShownBytes ? shown : shown.substr(0, kShownBytes) + "...";
}

}  // namespace

JsonNode JsonNode::operator[](const std::string& key) const {
  const std::string path = path_.empty() ? key : absl::StrCat(path_, ".", key);
  if (!value_->is_object()) return JsonNode(&NoValue(), path);
  const auto found = value_->find(key);
  return JsonNode(found == value_->end() ? &NoValue() : &*found, path);
}

JsonNode JsonNode::At(size_t index) const {
  return JsonNode(&value_->at(index), absl::StrCat(path_, "[", index, "]"));
}

absl::Status JsonNode::Error(const std::string& expected) const {
  return absl::InvalidArgumentError(
      absl::StrCat(path_.empty() ? "the file" : path_, " is ", Shown(*value_), "; ", expected));
}

absl::Status JsonNode::CheckKeys(std::initializer_list<const char*> keys) const {
  if (!value_->is_object()) return Error("expected an object");
  for (const auto& member : value_->items()) {
    const auto is_it = [&](const char* name) { return member.key() == name; };
    if (std::any_of(keys.begin(), keys.end(), is_it)) continue;
    return (*this)[member.key()].Error(
        absl::StrCat("this key is not supported; supported: ", absl::StrJoin(keys, ", ")));
  }
  return absl::OkStatus();
}

absl::Status JsonNode::CheckArray() const {
  return value_->is_array() ? absl::OkStatus() : Error("expected a list");
}

absl::StatusOr<std::string> JsonNode::String() const {
  if (!value_->is_string()) return Error("expected a string");
  return value_->get<std::string>();
}

absl::StatusOr<bool> JsonNode::Bool() const {
  if (!value_->is_boolean()) return Error("expected true or false");
  return value_->get<bool>();
}

absl::StatusOr<bool> JsonNode::BoolOr(bool if_null) const {
  if (is_null()) return if_null;
  return Bool();
}

absl::StatusOr<int64_t> JsonNode::Int(int64_t low, int64_t high) const {
  const auto expected = [&] {
    return absl::StrCat("expected an integer from ", low, " to ", high);
  };
  if (!value_->is_number_integer()) return Error(expected());
  // Unsigned numbers above the signed range would wrap.
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Error(expected());
  }
  const auto number = value_->get<int64_t>();
  if (number < low || number > high) return Error(expected());
  return number;
}

}  // namespace eddy
