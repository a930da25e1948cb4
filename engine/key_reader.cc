#include "engine/key_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/json_text.h"

namespace eddy {
namespace {

// Stands for an object that is not there.
const nlohmann::json& Nothing() {
  static const nlohmann::json nothing = nlohmann::json::object();
  return nothing;
}

std::string Bounds(auto min, auto max) { return absl::StrCat(min, " to ", max); }

}  // namespace

KeyReader::KeyReader(std::string file, const nlohmann::json& object)
    : own_faults_(new FileFaults{.file = std::move(file)}),
      faults_(own_faults_.get()),
      object_(object.is_object() ? object : Nothing()) {
  if (!object.is_object()) Fail("must be a JSON object");
}

KeyReader::KeyReader(FileFaults* faults, std::string path, const nlohmann::json& object)
    : faults_(faults), path_(std::move(path)), object_(object) {}

void KeyReader::Fail(const std::string& text) {
  absl::Status fault = absl::InvalidArgumentError(absl::StrCat(faults_->file, ": ", text));
  // A reader may look at a key twice.
  auto& all = faults_->all;
  if (std::find(all.begin(), all.end(), fault) == all.end()) all.push_back(std::move(fault));
}

void KeyReader::Refuse(const char* key, std::string_view what) {
  const auto it = object_.find(key);
  const std::string value = it == object_.end() ? "absent" : ShortDump(*it);
  Fail(absl::StrCat(path_, key, " is ", value, ", ", std::string(what)));
}

const nlohmann::json* KeyReader::Take(const char* key) {
  known_.insert(key);
  const auto it = object_.find(key);
  return it == object_.end() ? nullptr : &*it;
}

const nlohmann::json* KeyReader::TakeRequired(const char* key, bool required) {
  const nlohmann::json* const value = Take(key);
  if (value == nullptr && required) Fail(absl::StrCat(path_, key, " is missing"));
  return value;
}

bool KeyReader::IsInt(const char* key, const nlohmann::json& value, const IntRule& rule) {
  // Unsigned numbers beyond int64 would wrap.
  const bool is_int =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (is_int && value.get<int64_t>() >= rule.min && value.get<int64_t>() <= rule.max) return true;
  Refuse(key, absl::StrCat("must be a whole number from ", Bounds(rule.min, rule.max)));
  return false;
}

int64_t KeyReader::Int(const char* key, IntRule rule) {
  const nlohmann::json* const value = TakeRequired(key, !rule.absent);
  if (value == nullptr) return rule.absent.value_or(rule.min);
  return IsInt(key, *value, rule) ? value->get<int64_t>() : rule.min;
}

std::optional<int64_t> KeyReader::IntOrNull(const char* key, IntRule rule) {
  const nlohmann::json* const value = Take(key);
  if (value == nullptr) return rule.absent;
  if (value->is_null() || !IsInt(key, *value, rule)) return std::nullopt;
  return value->get<int64_t>();
}

std::variant<int64_t, std::string> KeyReader::IntOrWord(const char* key, IntRule rule,
                                                        std::initializer_list<const char*> words,
                                                        const char* absent) {
  const auto it = object_.find(key);
  if (it != object_.end() && it->is_number()) return Int(key, rule);
  return Word(key, words, absent);
}

Interval KeyReader::Range(const char* key, RealRule rule, Interval absent) {
  const nlohmann::json* const value = Take(key);
  if (value == nullptr) return absent;
  const auto within = [&](const nlohmann::json& number) {
    return number.is_number() && number.get<double>() >= rule.min &&
           number.get<double>() <= rule.max;
  };
  const auto unbounded = [](const nlohmann::json& end) { return end.is_null() || IsInfinity(end); };
  const bool good = value->is_array() && value->size() == 2 && within(value->at(0)) &&
                    (unbounded(value->at(1)) || within(value->at(1)));
  if (!good) {
    Refuse(key, absl::StrCat("must be a list of two numbers from ", Bounds(rule.min, rule.max),
                             ", or null as the second"));
    return absent;
  }
  Interval interval = {.min = value->at(0).get<double>()};
  if (!unbounded(value->at(1))) interval.max = value->at(1).get<double>();
  if (interval.max && *interval.max < interval.min) {
    Refuse(key, "the second number must not be below the first");
    return absent;
  }
  return interval;
}

std::optional<std::array<double, 2>> KeyReader::PairOrNull(const char* key, RealRule rule) {
  const nlohmann::json* const value = TakeRequired(key, true);
  if (value == nullptr || value->is_null()) return std::nullopt;
  const auto within = [&](const nlohmann::json& number) {
    return number.is_number() && number.get<double>() >= rule.min &&
           number.get<double>() <= rule.max;
  };
  if (value->is_array() && value->size() == 2 && within(value->at(0)) && within(value->at(1)) &&
      value->at(0).get<double>() < value->at(1).get<double>()) {
    return std::array{value->at(0).get<double>(), value->at(1).get<double>()};
  }
  Refuse(key, absl::StrCat("must be null or a list of two numbers from ",
                           Bounds(rule.min, rule.max), ", the first below the second"));
  return std::nullopt;
}

std::vector<int64_t> KeyReader::Ints(const char* key, IntRule rule) {
  constexpr int64_t kMost = 64;
  const nlohmann::json* const value = TakeRequired(key, !rule.absent);
  if (value == nullptr) return {rule.absent.value_or(rule.min)};
  if (value->is_null()) return {};
  if (!value->is_array()) {
    return IsInt(key, *value, rule) ? std::vector{value->get<int64_t>()} : std::vector<int64_t>();
  }
  return IntList(key, rule, kMost);
}

std::vector<int64_t> KeyReader::IntList(const char* key, IntRule rule, int64_t most) {
  const nlohmann::json* const value = TakeRequired(key, true);
  if (value == nullptr) return {};
  if (!value->is_array()) {
    Refuse(key, "must be a list of whole numbers");
    return {};
  }
  if (static_cast<int64_t>(value->size()) > most) {
    Fail(absl::StrCat(path_, key, " has ", value->size(), " entries, at most ", most));
    return {};
  }
  std::vector<int64_t> all;
  for (const nlohmann::json& one : *value) {
    if (!IsInt(key, one, rule)) return {};
    all.push_back(one.get<int64_t>());
  }
  return all;
}

std::optional<double> KeyReader::RealOrNull(const char* key, RealRule rule) {
  const nlohmann::json* const value = Take(key);
  if (value == nullptr) return rule.absent;
  if (value->is_null()) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : rule.max + 1;
  if (number >= rule.min && number <= rule.max) return number;
  Refuse(key, absl::StrCat("must be a number from ", Bounds(rule.min, rule.max)));
  return std::nullopt;
}

double KeyReader::Real(const char* key, RealRule rule) {
  const nlohmann::json* const value = TakeRequired(key, !rule.absent);
  if (value != nullptr && value->is_null()) {
    Refuse(key, absl::StrCat("must be a number from ", Bounds(rule.min, rule.max)));
  }
  return RealOrNull(key, rule).value_or(rule.min);
}

bool KeyReader::Flag(const char* key, std::optional<bool> absent) {
  const nlohmann::json* const value = TakeRequired(key, !absent);
  if (value == nullptr) return absent.value_or(false);
  if (!value->is_boolean()) {
    Refuse(key, "must be true or false");
    return false;
  }
  return value->get<bool>();
}

std::string KeyReader::Word(const char* key, std::initializer_list<const char*> words,
                            const char* absent) {
  const nlohmann::json* const value = TakeRequired(key, absent == nullptr);
  if (value == nullptr) return absent != nullptr ? absent : *words.begin();
  std::string list;
  for (const char* word : words) {
    if (value->is_string() && value->get_ref<const std::string&>() == word) return word;
    absl::StrAppend(&list, list.empty() ? "" : ", ", word);
  }
  Refuse(key, absl::StrCat("supported: ", list));
  return *words.begin();
}

std::string KeyReader::Text(const char* key) {
  const nlohmann::json* const value = TakeRequired(key, true);
  if (value == nullptr) return "?";
  if (value->is_string() && !value->get_ref<const std::string&>().empty()) {
    return value->get<std::string>();
  }
  Refuse(key, "must be a text that is not empty");
  return "?";
}

void KeyReader::MustBe(const char* key, const nlohmann::json& wanted, std::string_view reason) {
  const nlohmann::json* const value = Take(key);
  if (value == nullptr || *value == wanted) return;
  Refuse(key, absl::StrCat("must be ", ShortDump(wanted), reason.empty() ? "" : ": ",
                           std::string(reason)));
}

void KeyReader::Ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) known_.insert(key);
}

void KeyReader::IgnorePrefix(std::string_view prefix) {
  for (const auto& item : object_.items()) {
    if (item.key().compare(0, prefix.size(), prefix) == 0) known_.insert(item.key());
  }
}

bool KeyReader::Has(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && !it->is_null();
}

bool KeyReader::IsList(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && it->is_array();
}

void KeyReader::RequireNull(const char* key) {
  const nlohmann::json* const value = TakeRequired(key, true);
  if (value != nullptr && !value->is_null()) Refuse(key, "must be null");
}

KeyReader KeyReader::Object(const char* key) {
  const nlohmann::json* const value = TakeRequired(key, true);
  const bool good = value != nullptr && value->is_object();
  if (value != nullptr && !good) Refuse(key, "must be an object");
  return KeyReader(faults_, absl::StrCat(path_, key, "."), good ? *value : Nothing());
}

std::vector<KeyReader> KeyReader::Objects(const char* key, int64_t most) {
  const nlohmann::json* const value = TakeRequired(key, true);
  if (value == nullptr) return {};
  if (!value->is_array() || value->empty() || static_cast<int64_t>(value->size()) > most) {
    Refuse(key, absl::StrCat("must be a list of 1 to ", most, " objects"));
    return {};
  }
  std::vector<KeyReader> readers;
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string path = absl::StrCat(path_, key, "[", i, "]");
    if (!value->at(i).is_object()) {
      Fail(absl::StrCat(path, " is ", ShortDump(value->at(i)), ", must be an object"));
      return {};
    }
    readers.push_back(KeyReader(faults_, path + ".", value->at(i)));
  }
  return readers;
}

void KeyReader::End() {
  for (const auto& item : object_.items()) {
    if (known_.find(item.key()) != known_.end()) continue;
    // The key may be as long as the file.
    const std::string key = item.key().substr(0, 80);
    Fail(absl::StrCat("unknown key ", path_, key, " with value ", ShortDump(item.value())));
  }
}

absl::Status KeyReader::Status() const {
  return faults_->all.empty() ? absl::OkStatus() : faults_->all.front();
}

}  // namespace eddy
