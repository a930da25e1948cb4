// Reads one JSON object strictly: every key is read, ignored by name, or an error.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace eddy {

struct IntRule {
  int64_t min = 0, max = 0;            // both included
  std::optional<int64_t> absent = {};  // without: the key is required
};

struct RealRule {
  double min = 0, max = 0;
  std::optional<double> absent = {};
};

struct Interval {
  double min = 0;
  std::optional<double> max = {};
};

// Faults are kept, and a faulty key reads as a value within its rule; so a caller reads all it
// wants and looks at Status() once, before it believes any of it. An object inside another has a
// reader of its own, which shares its parent's faults and must not outlive it. Keeps a reference to
// the JSON. Used by one thread.
class KeyReader {
 public:
  // `file` is what errors call the file.
  KeyReader(std::string file, const nlohmann::json& object);

  int64_t Int(const char* key, IntRule rule);
  double Real(const char* key, RealRule rule);  // takes integers too
  bool Flag(const char* key, std::optional<bool> absent);
  std::string Word(const char* key, std::initializer_list<const char*> words,
                   const char* absent = nullptr);
  std::string Text(const char* key);  // required, not empty
  // Null is nothing. An absent key is the rule's `absent`, or else nothing.
  std::optional<int64_t> IntOrNull(const char* key, IntRule rule);
  std::optional<double> RealOrNull(const char* key, RealRule rule);
  // A number or one of the words; an absent key is the word `absent`.
  std::variant<int64_t, std::string> IntOrWord(const char* key, IntRule rule,
                                               std::initializer_list<const char*> words,
                                               const char* absent);
  // A list of two numbers, the second of which may be null or infinite (json_text.h): no upper
  // bound.
  Interval Range(const char* key, RealRule rule, Interval absent);
  // A list of two numbers, the first below the second, or null; required.
  std::optional<std::array<double, 2>> PairOrNull(const char* key, RealRule rule);
  // An id, a list of ids or null.
  std::vector<int64_t> Ints(const char* key, IntRule rule);
  // A list, required, of at most so many.
  std::vector<int64_t> IntList(const char* key, IntRule rule, int64_t most);

  // Refuses any value but `wanted`; absent counts as `wanted`.
  void MustBe(const char* key, const nlohmann::json& wanted, std::string_view reason);
  void Ignore(std::initializer_list<const char*> keys);
  void IgnorePrefix(std::string_view prefix);

  bool Has(const char* key) const;  // and it is not null
  bool IsList(const char* key) const;
  void RequireNull(const char* key);                              // the key must be there, and null
  KeyReader Object(const char* key);                              // required
  std::vector<KeyReader> Objects(const char* key, int64_t most);  // required, not empty

  // Says that the file is wrong: `key` with its value, then `what`.
  void Refuse(const char* key, std::string_view what);
  // All that was to be read has been: each key that is left is a fault.
  void End();
  // InvalidArgument with the first fault of the whole file.
  absl::Status Status() const;
  // All of them, in the order in which they were met, each once.
  const std::vector<absl::Status>& Faults() const { return faults_->all; }

 private:
  struct FileFaults {
    std::string file;
    std::vector<absl::Status> all = {};
  };
  KeyReader(FileFaults* faults, std::string path, const nlohmann::json& object);
  const nlohmann::json* Take(const char* key);  // null: absent
  const nlohmann::json* TakeRequired(const char* key, bool required);
  void Fail(const std::string& text);
  bool IsInt(const char* key, const nlohmann::json& value, const IntRule& rule);

  std::unique_ptr<FileFaults> own_faults_;  // the outermost reader's, which outlives the others
  FileFaults* faults_;                      // shared by the readers of one file
  std::string path_;                        // "layers[2].mixer." before the key
  const nlohmann::json& object_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace eddy
