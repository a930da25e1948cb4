#include "engine/json_text.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace eddy {
namespace {

// Watches the parser for what the library lets pass: depth, and keys that come twice.
class Watch {
 public:
  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth >= kMaxJsonDepth) too_deep_ = true;
    if (too_deep_) return false;
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(parsed.get<std::string>()).second) {
      if (!twice_) twice_ = parsed.get<std::string>();
    }
    return true;
  }
  bool too_deep() const { return too_deep_; }
  const std::optional<std::string>& twice() const { return twice_; }

 private:
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  bool too_deep_ = false;
  std::optional<std::string> twice_;
};

constexpr std::string_view kInfinity = "Infinity";
constexpr std::string_view kInfinityObject = "{\"__float__\": \"Infinity\"}";

bool IsWordCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

// The text with an object in the place of each bare Infinity: of exactly this word, and outside of
// strings. Where no value may stand, or behind a sign, the object is as wrong as the word was.
std::string WithoutBareInfinity(std::string_view text) {
  std::string clean;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      clean += c;
      clean += text[++i];
      continue;
    }
    if (c == '"') in_string = !in_string;
    const size_t end = i + kInfinity.size();
    const bool word = !in_string && text.compare(i, kInfinity.size(), kInfinity) == 0 &&
                      (i == 0 || !IsWordCharacter(text[i - 1])) &&
                      (end == text.size() || !IsWordCharacter(text[end]));
    if (word) {
      clean += kInfinityObject;
      i = end - 1;
    } else {
      clean += c;
    }
  }
  return clean;
}

}  // namespace

bool IsInfinity(const nlohmann::json& value) {
  return value.is_object() && value.size() == 1 && value.contains("__float__") &&
         value.at("__float__") == "Infinity";
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file) {
  if (static_cast<int64_t>(text.size()) > kMaxJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": is ", text.size(), " bytes long, at most ", kMaxJsonBytes));
  }
  std::string clean;
  if (text.find(kInfinity) != std::string_view::npos) {
    clean = WithoutBareInfinity(text);
    text = clean;
  }
  Watch watch;
  nlohmann::json value =
      nlohmann::json::parse(text.begin(), text.end(), std::ref(watch), /*allow_exceptions=*/false);
  if (watch.too_deep()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": is nested deeper than ", kMaxJsonDepth, " levels"));
  }
  if (value.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(file, ": is not JSON"));
  if (watch.twice()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": the key ", ShortDump(*watch.twice()), " stands twice in one object"));
  }
  return value;
}

absl::StatusOr<std::string> ReadJsonText(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  const std::streamoff bytes = in.tellg();
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
  // One byte more than allowed is enough for ParseJson to refuse it.
  std::string text(static_cast<size_t>(std::min<int64_t>(bytes, kMaxJsonBytes + 1)), '\0');
  in.seekg(0);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  return text;
}

std::string ShortDump(const nlohmann::json& value) {
  constexpr size_t kMost = 80;
  // Parsed strings are valid UTF-8; `replace` is for those that never went through the parser.
  std::string text =
      value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMost) text.replace(kMost, text.size(), "...");
  return text;
}

}  // namespace eddy
