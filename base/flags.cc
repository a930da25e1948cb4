#include "base/flags.h"

#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"

namespace eddy {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};
constexpr Unit kUnits[] = {
    {"GiB", int64_t{1} << 30}, {"MiB", int64_t{1} << 20}, {"KiB", int64_t{1} << 10}};

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::optional<int64_t> ParseBytes(std::string text) {
  int64_t unit = 1;
  for (const Unit& u : kUnits) {
    if (EndsWith(text, u.name)) {
      unit = u.bytes;
      text.resize(text.size() - 3);
      break;
    }
  }
  int64_t count = 0, bytes = 0;
  if (!absl::SimpleAtoi(text, &count) || __builtin_mul_overflow(count, unit, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

bool IsFlag(const std::string& arg) { return arg.size() > 2 && arg.compare(0, 2, "--") == 0; }

// "--max-sequences=4" -> {"max_sequences", "4"}. REQUIRES: IsFlag(arg).
struct Argument {
  explicit Argument(const std::string& arg) {
    const size_t equals = arg.find('=');
    name = absl::StrReplaceAll(arg.substr(2, equals == std::string::npos ? equals : equals - 2),
                               {{"-", "_"}});
    if (equals != std::string::npos) value = arg.substr(equals + 1);
  }

  std::string name;
  std::optional<std::string> value;
};

}  // namespace

std::string FormatBytes(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, unit.name);
  }
  return absl::StrCat(bytes);
}

namespace flag {

FlagKind<bool> Bool() {
  return {.range = "true or false",
          .parse = [](const std::string& text) -> std::optional<bool> {
            bool value = false;
            if (!absl::SimpleAtob(text, &value)) return std::nullopt;
            return value;
          },
          .print = [](const bool& value) -> std::string { return value ? "true" : "false"; }};
}

FlagKind<std::string> Text(const std::string& range) {
  return {.range = range,
          .parse = [](const std::string& text) { return std::optional<std::string>(text); },
          .print = [](const std::string& value) { return value; }};
}

FlagKind<std::string> OneOf(const std::vector<std::string>& choices) {
  return {.range = "one of " + absl::StrJoin(choices, ", "),
          .parse = [choices](const std::string& text) -> std::optional<std::string> {
            for (const std::string& choice : choices) {
              if (text == choice) return text;
            }
            return std::nullopt;
          },
          .print = [](const std::string& value) { return value; }};
}

FlagKind<int64_t> Number(int64_t least, int64_t most) {
  return {.range = absl::StrCat(least, " to ", most),
          .parse = [least, most](const std::string& text) -> std::optional<int64_t> {
            int64_t value = 0;
            if (!absl::SimpleAtoi(text, &value) || value < least || value > most) {
              return std::nullopt;
            }
            return value;
          },
          .print = [](const int64_t& value) { return absl::StrCat(value); }};
}

FlagKind<uint64_t> Unsigned() {
  return {.range = "0 to 18446744073709551615",
          .parse = [](const std::string& text) -> std::optional<uint64_t> {
            uint64_t value = 0;
            if (!absl::SimpleAtoi(text, &value)) return std::nullopt;
            return value;
          },
          .print = [](const uint64_t& value) { return absl::StrCat(value); }};
}

FlagKind<double> Real(double least, double most) {
  return {.range = absl::StrCat(least, " to ", most),
          .parse = [least, most](const std::string& text) -> std::optional<double> {
            double value = 0;
            // NaN fails both comparisons.
            if (!absl::SimpleAtod(text, &value) || !(value >= least && value <= most)) {
              return std::nullopt;
            }
            return value;
          },
          .print = [](const double& value) { return absl::StrCat(value); }};
}

FlagKind<absl::Duration> Time(absl::Duration least, absl::Duration most) {
  return {.range = absl::StrCat(absl::FormatDuration(least), " to ", absl::FormatDuration(most)),
          .parse = [least, most](const std::string& text) -> std::optional<absl::Duration> {
            absl::Duration value;
            if (!absl::ParseDuration(text, &value) || value < least || value > most) {
              return std::nullopt;
            }
            return value;
          },
          .print = [](const absl::Duration& value) { return absl::FormatDuration(value); }};
}

FlagKind<int64_t> Bytes(int64_t least, int64_t most) {
  return {.range = absl::StrCat(FormatBytes(least), " to ", FormatBytes(most)),
          .parse = [least, most](const std::string& text) -> std::optional<int64_t> {
            const std::optional<int64_t> value = ParseBytes(text);
            if (!value.has_value() || *value < least || *value > most) return std::nullopt;
            return value;
          },
          .print = [](const int64_t& value) { return FormatBytes(value); }};
}

}  // namespace flag

void FlagSet::AddFlag(const std::string& name, Flag flag) {
  flag.default_value = flag.print();
  EDDY_CHECK(flags_.emplace(name, std::move(flag)).second);
  order_.push_back(name);
}

void FlagSet::Set(const std::string& name, const std::string& value, const std::string& spelled,
                  Parsed* parsed) {
  Flag& flag = flags_.at(name);
  flag.given = true;
  if (!flag.set(value)) {
    parsed->faults.push_back(absl::StrCat(spelled, ": must be ", flag.range));
  }
}

bool FlagSet::ReadFlag(const std::string& arg, const std::optional<std::string>& next,
                       const std::string& where, Parsed* parsed) {
  const Argument argument(arg);
  const auto it = flags_.find(argument.name);
  if (it != flags_.end()) {
    if (argument.value.has_value()) {
      Set(argument.name, *argument.value, where + arg, parsed);
    } else if (it->second.is_bool) {
      Set(argument.name, "true", where + arg, parsed);
    } else if (next.has_value()) {
      Set(argument.name, *next, absl::StrCat(where, arg, " ", *next), parsed);
      return true;
    } else {
      parsed->faults.push_back(absl::StrCat(where, arg, ": needs a value"));
    }
    return false;
  }
  if (argument.name.compare(0, 2, "no") == 0 && !argument.value.has_value()) {
    const auto negated = flags_.find(argument.name.substr(2));
    if (negated != flags_.end() && negated->second.is_bool) {
      Set(negated->first, "false", where + arg, parsed);
      return false;
    }
  }
  parsed->faults.push_back(absl::StrCat(where, arg, ": unknown flag"));
  return false;
}

void FlagSet::ReadArgs(const std::vector<std::string>& args, Parsed* parsed) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      parsed->positional.insert(parsed->positional.end(), args.begin() + i + 1, args.end());
      return;
    }
    if (!IsFlag(args[i])) {
      parsed->positional.push_back(args[i]);
      continue;
    }
    const Argument argument(args[i]);
    const std::optional<std::string> next =
        i + 1 < args.size() ? std::optional<std::string>(args[i + 1]) : std::nullopt;
    if (argument.name == "help" && !argument.value.has_value()) {
      parsed->help = true;
    } else if (argument.name == "version" && !argument.value.has_value()) {
      parsed->version = true;
    } else if (argument.name == "flagfile" && (argument.value.has_value() || next.has_value())) {
      ReadFile(argument.value.has_value() ? *argument.value : *next, parsed);
      if (!argument.value.has_value()) ++i;
    } else if (ReadFlag(args[i], next, "", parsed)) {
      ++i;
    }
  }
}

void FlagSet::ReadFile(const std::string& path, Parsed* parsed) {
  std::ifstream file(path);
  if (!file) {
    parsed->faults.push_back(absl::StrCat("--flagfile=", path, ": cannot be read"));
    return;
  }
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    absl::StripAsciiWhitespace(&line);
    if (line.empty() || line[0] == '#') continue;
    const std::string where = absl::StrCat(path, ":", number, ": ");
    if (IsFlag(line)) {
      ReadFlag(line, std::nullopt, where, parsed);
    } else {
      parsed->faults.push_back(absl::StrCat(where, line, ": must be --name=value"));
    }
  }
}

FlagSet::Parsed FlagSet::Parse(const std::vector<std::string>& args,
                               const std::string& env_prefix) {
  Parsed parsed;
  for (const std::string& name : order_) {
    if (env_prefix.empty()) break;
    const std::string variable = env_prefix + absl::AsciiStrToUpper(name);
    if (const char* value = std::getenv(variable.c_str())) {
      Set(name, value, absl::StrCat(variable, "=", value), &parsed);
    }
  }
  ReadArgs(args, &parsed);
  return parsed;
}

std::vector<std::string> FlagSet::Words(const std::vector<std::string>& args) const {
  std::vector<std::string> words;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      words.insert(words.end(), args.begin() + i + 1, args.end());
      break;
    }
    if (!IsFlag(args[i])) {
      words.push_back(args[i]);
      continue;
    }
    const Argument argument(args[i]);
    const auto it = flags_.find(argument.name);
    const bool takes_next =
        (it != flags_.end() && !it->second.is_bool) || argument.name == "flagfile";
    if (takes_next && !argument.value.has_value()) ++i;
  }
  return words;
}

std::vector<std::string> FlagSet::Changed() const {
  std::vector<std::string> changed;
  for (const std::string& name : order_) {
    const Flag& flag = flags_.at(name);
    const std::string value = flag.print();
    if (value != flag.default_value) changed.push_back(absl::StrCat(name, "=", value));
  }
  return changed;
}

std::string FlagSet::Help() const {
  std::string help;
  for (const std::string& name : order_) {
    const Flag& flag = flags_.at(name);
    absl::StrAppend(&help, "  --", name, "=", flag.default_value.empty() ? "..." : "",
                    flag.default_value, "  (", flag.range, ")\n      ", flag.meaning, "\n");
  }
  return help;
}

}  // namespace eddy
