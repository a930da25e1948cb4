#include "server/text/oniguruma.h"

#include <array>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/utf8.h"
#include "server/text/unicode_property.h"

namespace eddy {
namespace {

constexpr int kDepthMax = 50;     // nested groups and classes
constexpr int kRepeatMax = 1000;  // in {n,m}

std::string CharText(char32_t c) {
  return absl::StrCat("\\x{", absl::Hex(static_cast<uint32_t>(c)), "}");
}

bool IsAsciiPunctuation(char c) { return absl::ascii_ispunct(static_cast<unsigned char>(c)); }

// One character class, or a part of one: what it holds as the inside of [...], and classes that
// cannot be written so.
struct ClassParts {
  std::string inside;
  std::vector<std::string> nested;

  // As an expression for one character.
  std::string Text() const {
    std::vector<std::string> any = nested;
    if (!inside.empty()) any.push_back(absl::StrCat("[", inside, "]"));
    if (any.size() == 1) return any[0];
    return absl::StrCat("(?:", absl::StrJoin(any, "|"), ")");
  }
};

// Recursive descent over the pattern; `out_` grows as it goes.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    // In front of everything (?i) means the same in both dialects; elsewhere it does not.
    if (Take("(?i)")) out_ = "(?i)";
    EDDY_RETURN_IF_ERROR(Alternatives(0));
    if (at_ < in_.size()) return Error("unmatched )");
    return std::move(out_);
  }

 private:
  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("pattern \"", std::string(in_), "\" at byte ", at_, ": ", what));
  }
  bool AtEnd() const { return at_ == in_.size(); }
  char Peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool Next(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }

  // Up to the end or to the ) of the group around it.
  absl::Status Alternatives(int depth) {
    if (depth > kDepthMax) return Error(absl::StrCat("more than ", kDepthMax, " groups nested"));
    while (!AtEnd() && Peek() != ')') {
      if (Take("|")) {
        out_ += '|';
        continue;
      }
      const size_t begin = out_.size();
      EDDY_RETURN_IF_ERROR(Atom(depth));
      EDDY_RETURN_IF_ERROR(Quantifiers(begin));
    }
    return absl::OkStatus();
  }

  absl::Status Atom(int depth) {
    const char c = Peek();
    if (c == '(') return Group(depth);
    if (c == '[') {
      EDDY_ASSIGN_OR_RETURN(const std::string text, Class(depth));
      out_ += text;
      return absl::OkStatus();
    }
    if (c == '\\') return Escape();
    if (c == '*' || c == '+' || c == '?') return Error("nothing to repeat");
    if (c == '.' || c == '^' || c == '$') {
      out_ += c;
      ++at_;
      return absl::OkStatus();
    }
    const Utf8Char literal = ReadUtf8(in_, at_);
    out_ += CharText(literal.value);
    at_ += literal.size;
    return absl::OkStatus();
  }

  absl::Status Group(int depth) {
    std::string open;
    for (const char* known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (Take(known)) open = known;
      if (!open.empty()) break;
    }
    if (open.empty()) {
      if (Next("(?")) {
        return Error("group not supported; supported: ( (?: (?= (?! (?<= (?<! (?> (?i:");
      }
      Take("(");
      // Nothing can refer to it, for back references are refused.
      open = "(?:";
    }
    out_ += open;
    EDDY_RETURN_IF_ERROR(Alternatives(depth + 1));
    if (!Take(")")) return Error("a group does not end");
    out_ += ')';
    return absl::OkStatus();
  }

  // Any number of * + ? {n,m} behind the atom that begins at out_[begin].
  absl::Status Quantifiers(size_t begin) {
    for (int count = 0;; ++count) {
      const char c = Peek();
      std::string quantifier;
      bool interval = false;
      if (!AtEnd() && (c == '*' || c == '+' || c == '?')) {
        quantifier = c;
        ++at_;
      } else if (c == '{') {
        EDDY_ASSIGN_OR_RETURN(quantifier, Interval());
        if (quantifier.empty()) return absl::OkStatus();
        interval = true;
      } else {
        return absl::OkStatus();
      }
      if (count > 0) {
        out_.insert(begin, "(?:");
        out_ += ')';
      }
      out_ += quantifier;
      const bool exact = interval && !absl::StrContains(quantifier, ",");
      // Lazy and possessive forms; + behind {n,m} and ? behind {n} are quantifiers of their own.
      if ((Peek() == '?' && !exact) || (Peek() == '+' && !interval)) out_ += in_[at_++];
    }
  }

  // {n} {n,} {,m} {n,m} as PCRE2 knows them; empty, and nothing taken, if it is not one of these.
  absl::StatusOr<std::string> Interval() {
    size_t at = at_ + 1;
    const auto number = [&]() -> std::optional<int> {
      std::optional<int> value;
      while (at < in_.size() && absl::ascii_isdigit(static_cast<unsigned char>(in_[at]))) {
        value = value.value_or(0) * 10 + (in_[at++] - '0');
        if (*value > kRepeatMax) break;
      }
      return value;
    };
    const std::optional<int> low = number();
    const bool comma = at < in_.size() && in_[at] == ',';
    if (comma) ++at;
    const std::optional<int> high = comma ? number() : low;
    if (low.value_or(0) > kRepeatMax || high.value_or(0) > kRepeatMax) {
      return Error(absl::StrCat("more than ", kRepeatMax, " repetitions"));
    }
    if (at >= in_.size() || in_[at] != '}' || (!low.has_value() && !high.has_value())) {
      return std::string();
    }
    if (high.has_value() && *high < low.value_or(0)) return Error("{n,m} with n > m");
    at_ = at + 1;
    if (!comma) return absl::StrCat("{", *low, "}");
    return absl::StrCat("{", low.value_or(0), ",", high ? absl::StrCat(*high) : "", "}");
  }

  // An escape outside of a class.
  absl::Status Escape() {
    // Outside of classes Oniguruma takes some numbers of Latin-1 for word characters, too.
    const std::string inside = absl::StrCat(kWordInside, R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})");
    const std::string word = absl::StrCat("[", inside, "]");
    const std::string before = absl::StrCat("(?<=", word, ")"),
                      after = absl::StrCat("(?=", word, ")");
    const std::string not_before = absl::StrCat("(?<!", word, ")");
    const std::string not_after = absl::StrCat("(?!", word, ")");
    const char c = Peek(1);
    if (c == 'b' || c == 'B') {
      const bool edge = c == 'b';
      out_ += absl::StrCat("(?:", before, edge ? not_after : after, "|", not_before,
                           edge ? after : not_after, ")");
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'w' || c == 'W') {
      out_ += absl::StrCat(c == 'w' ? "[" : "[^", inside, "]");
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'A' || c == 'z' || c == 'Z') {
      out_.append({'\\', c});
      at_ += 2;
      return absl::OkStatus();
    }
    ClassParts parts;
    EDDY_ASSIGN_OR_RETURN(const bool is_set, SetEscape(&parts));
    if (is_set) {
      out_ += parts.Text();
      return absl::OkStatus();
    }
    EDDY_ASSIGN_OR_RETURN(const char32_t value, CharEscape());
    out_ += CharText(value);
    return absl::OkStatus();
  }

  // \s \d \w \p and their opposites, anywhere. False, and nothing taken, if it is none.
  absl::StatusOr<bool> SetEscape(ClassParts* parts) {
    const char c = Peek(1);
    const char kind = absl::ascii_tolower(static_cast<unsigned char>(c));
    const char* inside = kind == 's'   ? kSpaceInside
                         : kind == 'd' ? kDigitInside
                         : kind == 'w' ? kWordInside
                                       : nullptr;
    if (inside != nullptr) {
      at_ += 2;
      Put(inside, /*negated=*/c != kind, parts);
      return true;
    }
    if (kind != 'p') return false;
    at_ += 2;
    if (!Take("{")) return Error("\\p without {");
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) return Error("\\p{ without }");
    bool negated = c == 'P';
    if (Take("^")) negated = !negated;
    EDDY_ASSIGN_OR_RETURN(const std::string property, Property(in_.substr(at_, close - at_)));
    at_ = close + 1;
    Put(property, negated, parts);
    return true;
  }

  static void Put(const std::string& inside, bool negated, ClassParts* parts) {
    if (negated) {
      parts->nested.push_back(absl::StrCat("[^", inside, "]"));
    } else {
      parts->inside += inside;
    }
  }

  absl::StatusOr<std::string> Property(std::string_view name) const {
    std::string inside = PropertyInside(name);
    if (inside.empty())
      return Error(absl::StrCat("property \"", std::string(name), "\" not known"));
    return inside;
  }

  // An escape that stands for one character.
  absl::StatusOr<char32_t> CharEscape() {
    constexpr std::array<std::pair<char, char32_t>, 7> kControls = {{{'n', 0x0A},
                                                                     {'r', 0x0D},
                                                                     {'t', 0x09},
                                                                     {'f', 0x0C},
                                                                     {'v', 0x0B},
                                                                     {'a', 0x07},
                                                                     {'e', 0x1B}}};
    const char c = Peek(1);
    for (const auto& [name, value] : kControls) {
      if (c != name) continue;
      at_ += 2;
      return value;
    }
    if (c == 'x' || c == 'u') {
      const bool braces = c == 'x' && Peek(2) == '{';
      return HexEscape(braces, c == 'u' ? 4 : braces ? 6 : 2);
    }
    if (at_ + 1 >= in_.size() || !IsAsciiPunctuation(c)) {
      return Error(
          "escape not supported; supported: \\s \\S \\d \\D \\w \\W \\b \\B \\A \\z \\Z "
          "\\p{} \\P{} \\n \\r \\t \\f \\v \\a \\e \\xHH \\x{H} \\uHHHH and punctuation");
    }
    at_ += 2;
    return static_cast<char32_t>(c);
  }

  absl::StatusOr<char32_t> HexEscape(bool braces, size_t digits_max) {
    at_ += braces ? 3 : 2;
    char32_t value = 0;
    size_t digits = 0;
    while (digits < digits_max && absl::ascii_isxdigit(static_cast<unsigned char>(Peek()))) {
      const char c = absl::ascii_tolower(static_cast<unsigned char>(in_[at_++]));
      value = value * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
      ++digits;
    }
    if (digits == 0 || (digits_max == 4 && digits < 4)) return Error("too few hexadecimal digits");
    if (braces && !Take("}")) return Error("\\x{ without }");
    // \xHH above 7F is a byte of a character, not a character.
    if ((digits_max == 2 && value > 0x7F) || value > 0x10FFFF ||
        (value >= 0xD800 && value <= 0xDFFF)) {
      return Error("escape is not a character");
    }
    return value;
  }

  // [...] with everything in it, as an expression for one character.
  absl::StatusOr<std::string> Class(int depth) {
    if (depth > kDepthMax) return Error(absl::StrCat("more than ", kDepthMax, " classes nested"));
    ++at_;
    const bool negated = Take("^");
    std::vector<ClassParts> operands(1);  // of &&
    for (bool first = true; first || Peek() != ']'; first = false) {
      if (AtEnd()) return Error("a character class does not end");
      if (!first && Take("&&")) {
        operands.emplace_back();
        continue;
      }
      EDDY_RETURN_IF_ERROR(ClassItem(depth, &operands.back()));
    }
    ++at_;
    std::string text;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].inside.empty() && operands[i].nested.empty())
        return Error("&& beside nothing");
      const bool last = i + 1 == operands.size();
      text += last ? operands[i].Text() : absl::StrCat("(?=", operands[i].Text(), ")");
    }
    if (operands.size() == 1 && operands[0].nested.empty()) {
      return absl::StrCat(negated ? "[^" : "[", operands[0].inside, "]");
    }
    if (negated) return absl::StrCat("(?:(?!", text, ")(?s:.))");
    return absl::StrCat("(?:", text, ")");
  }

  absl::Status ClassItem(int depth, ClassParts* parts) {
    if (Next("[:")) {
      const size_t close = in_.find(":]", at_);
      if (close == std::string_view::npos) return Error("[: without :]");
      at_ += 2;
      const bool negated = Take("^");
      EDDY_ASSIGN_OR_RETURN(const std::string inside, Property(in_.substr(at_, close - at_)));
      at_ = close + 2;
      Put(inside, negated, parts);
      return absl::OkStatus();
    }
    if (Peek() == '[') {
      EDDY_ASSIGN_OR_RETURN(std::string nested, Class(depth + 1));
      parts->nested.push_back(std::move(nested));
      return absl::OkStatus();
    }
    if (Peek() == '\\' && Peek(1) != 'b') {
      EDDY_ASSIGN_OR_RETURN(const bool is_set, SetEscape(parts));
      if (is_set) return absl::OkStatus();
    }
    EDDY_ASSIGN_OR_RETURN(const char32_t low, ClassChar());
    parts->inside += CharText(low);
    if (Peek() != '-' || Peek(1) == ']' || at_ + 1 >= in_.size()) return absl::OkStatus();
    ++at_;
    if (Peek() == '[' || Next("&&")) return Error("a range without its end");
    EDDY_ASSIGN_OR_RETURN(const char32_t high, ClassChar());
    if (high < low) return Error("a range that runs backwards");
    parts->inside += absl::StrCat("-", CharText(high));
    return absl::OkStatus();
  }

  absl::StatusOr<char32_t> ClassChar() {
    if (Take("\\b")) return 0x08;
    if (Peek() == '\\') return CharEscape();
    const Utf8Char c = ReadUtf8(in_, at_);
    at_ += c.size;
    return c.value;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> OnigurumaToPcre2(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace eddy
