#include "server/text/json_components.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "server/text/oniguruma.h"

namespace eddy {
namespace {

constexpr int kDepthMax = 20;  // sequences within sequences
constexpr int kStripMax = 1000;

// GPT-2's own pattern (Radford et al., encoder.py).
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// "Whitespace" is a pattern of Rust's regex, whose words hold the two joiners too.
constexpr const char* kWhitespacePattern = R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)";

// Unicode's punctuation, and ASCII's, some of which are symbols to Unicode.
constexpr const char* kPunctuationPattern = R"([\p{P}!-/:-@\[-`{-~])";

absl::StatusOr<Pattern> MakeRegex(const JsonNode& node, const std::string& oniguruma) {
  absl::StatusOr<std::string> pcre2 = OnigurumaToPcre2(oniguruma);
  if (!pcre2.ok()) return node.Error(std::string(pcre2.status().message()));
  absl::StatusOr<Regex> regex = Regex::Compile(*pcre2);
  if (!regex.ok()) return node.Error(std::string(regex.status().message()));
  return Pattern(*std::move(regex));
}

// {"String": s} or {"Regex": r}.
absl::StatusOr<Pattern> ReadPattern(const JsonNode& node) {
  EDDY_RETURN_IF_ERROR(node.CheckKeys({"String", "Regex"}));
  if (node.size() != 1) return node.Error("expected one of String, Regex");
  if (!node["Regex"].is_null()) {
    EDDY_ASSIGN_OR_RETURN(const std::string regex, node["Regex"].String());
    return MakeRegex(node["Regex"], regex);
  }
  EDDY_ASSIGN_OR_RETURN(std::string literal, node["String"].String());
  if (literal.empty()) return node["String"].Error("expected a string that is not empty");
  return Pattern(std::move(literal));
}

absl::StatusOr<std::string> ReadCharacter(const JsonNode& node) {
  EDDY_ASSIGN_OR_RETURN(std::string text, node.String());
  if (text.empty() || ReadUtf8(text, 0).size != text.size()) {
    return node.Error("expected one character");
  }
  return text;
}

// Calls read(element) for the components of a Sequence.
template <typename Read>
absl::Status ReadSequence(const JsonNode& node, const char* list, int depth, Read read) {
  EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", list}));
  EDDY_RETURN_IF_ERROR(node[list].CheckArray());
  if (depth >= kDepthMax) return node.Error(absl::StrCat("more than ", kDepthMax, " nested"));
  for (size_t i = 0; i < node[list].size(); ++i) {
    EDDY_RETURN_IF_ERROR(read(node[list].At(i)));
  }
  return absl::OkStatus();
}

absl::Status AddNormalizer(const JsonNode& node, int depth, std::vector<NormalizerStep>* steps) {
  EDDY_ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type == "Sequence") {
    return ReadSequence(node, "normalizers", depth, [&](const JsonNode& element) {
      return AddNormalizer(element, depth + 1, steps);
    });
  }
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    steps->emplace_back(type == "NFC"    ? UnicodeForm::kNfc
                        : type == "NFD"  ? UnicodeForm::kNfd
                        : type == "NFKC" ? UnicodeForm::kNfkc
                                         : UnicodeForm::kNfkd);
  } else if (type == "Lowercase") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    steps->emplace_back(LowercaseStep{});
  } else if (type == "Prepend") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "prepend"}));
    EDDY_ASSIGN_OR_RETURN(std::string text, node["prepend"].String());
    steps->emplace_back(PrependStep{.text = std::move(text)});
  } else if (type == "Replace") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "content"}));
    EDDY_ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(node["pattern"]));
    EDDY_ASSIGN_OR_RETURN(std::string content, node["content"].String());
    steps->emplace_back(ReplaceStep{.pattern = std::move(pattern), .content = std::move(content)});
  } else if (type == "Strip") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "strip_left", "strip_right"}));
    EDDY_ASSIGN_OR_RETURN(const bool left, node["strip_left"].Bool());
    EDDY_ASSIGN_OR_RETURN(const bool right, node["strip_right"].Bool());
    steps->emplace_back(TrimStep{.left = left, .right = right});
  } else {
    return node["type"].Error(
        "supported: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip");
  }
  return absl::OkStatus();
}

absl::Status AddRegexSplit(const JsonNode& node, const char* regex, SplitBehavior behavior,
                           bool invert, std::vector<PreTokenizerStep>* steps) {
  EDDY_ASSIGN_OR_RETURN(Pattern pattern, MakeRegex(node, regex));
  steps->emplace_back(
      SplitStep{.pattern = std::move(pattern), .behavior = behavior, .invert = invert});
  return absl::OkStatus();
}

absl::Status AddByteLevel(const JsonNode& node, std::vector<PreTokenizerStep>* steps) {
  EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  EDDY_ASSIGN_OR_RETURN(const bool prefix, node["add_prefix_space"].Bool());
  EDDY_ASSIGN_OR_RETURN(const bool use_regex, node["use_regex"].BoolOr(true));
  if (prefix) steps->emplace_back(PrefixSpaceStep{});
  if (use_regex) {
    EDDY_RETURN_IF_ERROR(
        AddRegexSplit(node, kGpt2Pattern, SplitBehavior::kIsolated, /*invert=*/false, steps));
  }
  steps->emplace_back(ByteAlphabetStep{});
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonNode& node) {
  EDDY_ASSIGN_OR_RETURN(const std::string name, node.String());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return node.Error("supported: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

absl::Status AddSplit(const JsonNode& node, std::vector<PreTokenizerStep>* steps) {
  EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "behavior", "invert"}));
  EDDY_ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(node["pattern"]));
  EDDY_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(node["behavior"]));
  EDDY_ASSIGN_OR_RETURN(const bool invert, node["invert"].Bool());
  steps->emplace_back(
      SplitStep{.pattern = std::move(pattern), .behavior = behavior, .invert = invert});
  return absl::OkStatus();
}

// The fields that pre-tokenizer and decoder have in common.
absl::StatusOr<MetaspaceStep> ReadMetaspace(const JsonNode& node) {
  EDDY_RETURN_IF_ERROR(node.CheckKeys(
      {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}));
  MetaspaceStep step;
  EDDY_ASSIGN_OR_RETURN(step.replacement, ReadCharacter(node["replacement"]));
  std::string scheme = "always";
  if (!node["prepend_scheme"].is_null()) {
    EDDY_ASSIGN_OR_RETURN(scheme, node["prepend_scheme"].String());
  }
  if (scheme == "always") {
    step.prepend = MetaspaceStep::Prepend::kAlways;
  } else if (scheme == "first") {
    step.prepend = MetaspaceStep::Prepend::kFirst;
  } else if (scheme == "never") {
    step.prepend = MetaspaceStep::Prepend::kNever;
  } else {
    return node["prepend_scheme"].Error("supported: always, first, never");
  }
  // The field that prepend_scheme came to replace.
  EDDY_ASSIGN_OR_RETURN(const bool prefix, node["add_prefix_space"].BoolOr(true));
  if (!prefix && step.prepend != MetaspaceStep::Prepend::kNever) {
    return node["add_prefix_space"].Error("false contradicts a prepend_scheme other than never");
  }
  return step;
}

absl::Status AddMetaspace(const JsonNode& node, std::vector<PreTokenizerStep>* steps) {
  EDDY_ASSIGN_OR_RETURN(MetaspaceStep step, ReadMetaspace(node));
  EDDY_ASSIGN_OR_RETURN(const bool split, node["split"].BoolOr(true));
  const std::string replacement = step.replacement;
  steps->emplace_back(std::move(step));
  if (split) {
    steps->emplace_back(
        SplitStep{.pattern = Pattern(replacement), .behavior = SplitBehavior::kMergedWithNext});
  }
  return absl::OkStatus();
}

absl::Status AddPreTokenizer(const JsonNode& node, int depth,
                             std::vector<PreTokenizerStep>* steps) {
  EDDY_ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type == "Sequence") {
    return ReadSequence(node, "pretokenizers", depth, [&](const JsonNode& element) {
      return AddPreTokenizer(element, depth + 1, steps);
    });
  }
  if (type == "ByteLevel") return AddByteLevel(node, steps);
  if (type == "Split") return AddSplit(node, steps);
  if (type == "Metaspace") return AddMetaspace(node, steps);
  if (type == "Digits") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "individual_digits"}));
    EDDY_ASSIGN_OR_RETURN(const bool individual, node["individual_digits"].Bool());
    return AddRegexSplit(node, R"(\p{N})",
                         individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                         /*invert=*/false, steps);
  }
  if (type == "Whitespace") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    return AddRegexSplit(node, kWhitespacePattern, SplitBehavior::kRemoved, /*invert=*/true, steps);
  }
  if (type == "WhitespaceSplit") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    return AddRegexSplit(node, R"(\s)", SplitBehavior::kRemoved, /*invert=*/false, steps);
  }
  if (type == "Punctuation") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "behavior"}));
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (!node["behavior"].is_null()) {
      EDDY_ASSIGN_OR_RETURN(behavior, ReadBehavior(node["behavior"]));
    }
    return AddRegexSplit(node, kPunctuationPattern, behavior, /*invert=*/false, steps);
  }
  if (type == "CharDelimiterSplit") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "delimiter"}));
    EDDY_ASSIGN_OR_RETURN(std::string delimiter, ReadCharacter(node["delimiter"]));
    steps->emplace_back(
        SplitStep{.pattern = Pattern(std::move(delimiter)), .behavior = SplitBehavior::kRemoved});
    return absl::OkStatus();
  }
  return node["type"].Error(
      "supported: Sequence, ByteLevel, Split, Metaspace, Digits, Whitespace, WhitespaceSplit, "
      "Punctuation, CharDelimiterSplit");
}

absl::StatusOr<DecodeStep> ReadDecodeStep(const JsonNode& node, const std::string& type) {
  if (type == "ByteLevel") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    return BytesFromAlphabet{};
  }
  if (type == "ByteFallback") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    return BytesFromNames{};
  }
  if (type == "Fuse") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    return Fuse{};
  }
  if (type == "Replace") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "content"}));
    EDDY_ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(node["pattern"]));
    if (pattern.literal() == nullptr) return node["pattern"].Error("supported: String");
    EDDY_ASSIGN_OR_RETURN(std::string content, node["content"].String());
    return ReplaceInTokens{.from = *pattern.literal(), .to = std::move(content)};
  }
  if (type == "Strip") {
    EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "content", "start", "stop"}));
    EDDY_ASSIGN_OR_RETURN(std::string character, ReadCharacter(node["content"]));
    EDDY_ASSIGN_OR_RETURN(const int64_t start, node["start"].Int(0, kStripMax));
    EDDY_ASSIGN_OR_RETURN(const int64_t stop, node["stop"].Int(0, kStripMax));
    return StripTokens{.character = std::move(character),
                       .start = static_cast<int>(start),
                       .stop = static_cast<int>(stop)};
  }
  if (type == "Metaspace") {
    EDDY_ASSIGN_OR_RETURN(MetaspaceStep step, ReadMetaspace(node));
    return SpacesFromMarks{.replacement = std::move(step.replacement),
                           .drop_first = step.prepend != MetaspaceStep::Prepend::kNever};
  }
  return node["type"].Error(
      "supported: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace");
}

absl::Status AddDecoder(const JsonNode& node, int depth, std::vector<DecodeStep>* steps) {
  EDDY_ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type == "Sequence") {
    return ReadSequence(node, "decoders", depth, [&](const JsonNode& element) {
      return AddDecoder(element, depth + 1, steps);
    });
  }
  EDDY_ASSIGN_OR_RETURN(DecodeStep step, ReadDecodeStep(node, type));
  for (const DecodeStep& before : *steps) {
    if (!MakesOneToken(before) || WorksOnParts(step)) continue;
    return node.Error(
        "behind Fuse or ByteLevel, where all text is one token, only Fuse, Strip and Replace of "
        "one "
        "character are supported");
  }
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<NormalizerStep>> ReadNormalizer(const JsonNode& node) {
  std::vector<NormalizerStep> steps;
  if (!node.is_null()) EDDY_RETURN_IF_ERROR(AddNormalizer(node, 0, &steps));
  return steps;
}

absl::StatusOr<std::vector<PreTokenizerStep>> ReadPreTokenizer(const JsonNode& node) {
  std::vector<PreTokenizerStep> steps;
  if (!node.is_null()) EDDY_RETURN_IF_ERROR(AddPreTokenizer(node, 0, &steps));
  return steps;
}

absl::StatusOr<std::vector<DecodeStep>> ReadDecoder(const JsonNode& node) {
  std::vector<DecodeStep> steps;
  if (node.is_null()) {
    steps.emplace_back(JoinWithSpaces{});
  } else {
    EDDY_RETURN_IF_ERROR(AddDecoder(node, 0, &steps));
  }
  return steps;
}

}  // namespace eddy
