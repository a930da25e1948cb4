// Flags of a program, each said once: name, where its value goes, what it may be, meaning. The
// value that is there already is the default.
//
//   FlagSet flags;
//   flags.Add("max_sequences", &config.max_sequences, flag::Number(0, 65535), "state slots");
//   const FlagSet::Parsed parsed = flags.Parse(args, "EDDY_");
//
// Written --name=value or --name value; a truth value also --name and --noname; `-` and `_` are the
// same in names; "--" ends the flags; --flagfile=F reads more, one on each line. A flag given twice
// keeps the last. Not absl/flags, because that ends the program at the first fault, with another
// status than ours, and knows one set of flags for all commands of a program.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/time/time.h"

namespace eddy {

// What a flag's value may be and how it is written.
template <typename T>
struct FlagKind {
  std::string range;                                          // for people: "0 to 65535"
  std::function<std::optional<T>(const std::string&)> parse;  // nothing: not in the range
  std::function<std::string(const T&)> print;
};

namespace flag {

FlagKind<bool> Bool();
FlagKind<std::string> Text(const std::string& range);  // the range is told and not checked
FlagKind<std::string> OneOf(const std::vector<std::string>& choices);
FlagKind<int64_t> Number(int64_t least, int64_t most);
FlagKind<uint64_t> Unsigned();  // 0 to 2^64 - 1
FlagKind<double> Real(double least, double most);
// As absl::ParseDuration takes them: 500ms, 30s, 10m, 1h, inf.
FlagKind<absl::Duration> Time(absl::Duration least, absl::Duration most);
// A number of bytes, or of KiB, MiB, GiB.
FlagKind<int64_t> Bytes(int64_t least, int64_t most);

}  // namespace flag

// One thread. The values pointed to must outlive it.
class FlagSet {
 public:
  struct Parsed {
    std::vector<std::string> positional = {};
    std::vector<std::string> faults = {};  // all of them, each a line that names flag and value
    bool help = false;                     // --help was given
    bool version = false;                  // --version was given
  };

  // `V` is T, an optional T, or an integer type that holds all of the range.
  template <typename V, typename T>
  void Add(const std::string& name, V* value, const FlagKind<T>& kind, const std::string& meaning) {
    Flag flag;
    flag.range = kind.range;
    flag.meaning = meaning;
    flag.is_bool = std::is_same_v<T, bool>;
    flag.set = [value, kind](const std::string& text) {
      const std::optional<T> parsed = kind.parse(text);
      if (!parsed.has_value()) return false;
      if constexpr (std::is_integral_v<V>) {
        *value = static_cast<V>(*parsed);
      } else {
        *value = *parsed;
      }
      return true;
    };
    flag.print = [value, kind]() -> std::string {
      if constexpr (std::is_same_v<V, std::optional<T>>) {
        return value->has_value() ? kind.print(**value) : "";
      } else {
        return kind.print(*value);
      }
    };
    AddFlag(name, std::move(flag));
  }

  // Reads first the environment (`env_prefix` and the name in capitals; variables that name no flag
  // are not looked at; an empty prefix: none are), then `args` (without the program's name), which
  // win.
  Parsed Parse(const std::vector<std::string>& args, const std::string& env_prefix);
  // What of `args` is neither a flag nor the value of a flag of this set. Flags that are not of
  // this set are taken to have no value behind them.
  std::vector<std::string> Words(const std::vector<std::string>& args) const;

  bool has(const std::string& name) const { return flags_.count(name) > 0; }
  // Whether the last Parse found the flag anywhere. REQUIRES: it was added.
  bool given(const std::string& name) const { return flags_.at(name).given; }
  // name=value of those that are not at their default, in the order they were added.
  std::vector<std::string> Changed() const;
  // Two lines per flag.
  std::string Help() const;

 private:
  struct Flag {
    std::string range = {}, meaning = {}, default_value = {};
    bool is_bool = false, given = false;
    std::function<bool(const std::string&)> set = {};  // false: not in the range
    std::function<std::string()> print = {};
  };

  void AddFlag(const std::string& name, Flag flag);
  void Set(const std::string& name, const std::string& value, const std::string& spelled,
           Parsed* parsed);
  void ReadArgs(const std::vector<std::string>& args, Parsed* parsed);
  // One --name=value or --name of the command line or of a flagfile, `next` the word after it;
  // returns whether that was used as its value.
  bool ReadFlag(const std::string& arg, const std::optional<std::string>& next,
                const std::string& where, Parsed* parsed);
  void ReadFile(const std::string& path, Parsed* parsed);

  std::map<std::string, Flag> flags_;
  std::vector<std::string> order_;
};

// "8MiB": in the largest unit that leaves no rest.
std::string FormatBytes(int64_t bytes);

}  // namespace eddy
