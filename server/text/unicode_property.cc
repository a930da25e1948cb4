#include "server/text/unicode_property.h"

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/text/regex.h"

namespace eddy {
namespace {

constexpr std::array<const char*, 37> kCategories = {
    "l",  "lu", "ll", "lt", "lm", "lo", "m",  "mn", "mc", "me", "n",  "nd", "nl",
    "no", "p",  "pc", "pd", "ps", "pe", "pi", "pf", "po", "s",  "sm", "sc", "sk",
    "so", "z",  "zs", "zl", "zp", "c",  "cc", "cf", "cn", "co", "cs"};

constexpr std::array<std::pair<const char*, const char*>, 14> kNamed = {{
    {"letter", R"(\p{L})"},
    {"mark", R"(\p{M})"},
    {"number", R"(\p{N})"},
    {"punctuation", R"(\p{P})"},
    {"symbol", R"(\p{S})"},
    {"separator", R"(\p{Z})"},
    {"other", R"(\p{C})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"digit", kDigitInside},
    {"space", kSpaceInside},
    {"lower", R"(\p{Lowercase})"},
    {"upper", R"(\p{Uppercase})"},
    {"word", kWordInside},
}};

}  // namespace

std::string PropertyInside(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) return "";
    key += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  for (const char* category : kCategories) {
    if (key == category) return absl::StrCat("\\p{", key, "}");
  }
  for (const auto& [known, inside] : kNamed) {
    if (key == known) return inside;
  }
  // Names that begin with x are PCRE2's own inventions.
  if (key.empty() || key[0] == 'x') return "";
  for (const char* kind : {"sc:", ""}) {
    std::string text = absl::StrCat("\\p{", kind, key, "}");
    if (Regex::Compile(text).ok()) return text;
  }
  return "";
}

}  // namespace eddy
