#include "server/text/tokenizer_json.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/text/json_components.h"
#include "server/text/json_node.h"
#include "server/text/pieces.h"

namespace eddy {
namespace {

constexpr int64_t kIdMax = (1 << 24) - 1;
constexpr size_t kAddedBytesMax = 4096;  // of one added token; bounds the search at each place
constexpr int kDepthMax = 20;

using Token = JsonTokenizer::Token;

// Makes `tokens` long enough for `id`, and takes the place. False if another token has it.
bool PutToken(int64_t id, const Token& token, std::vector<Token>* tokens) {
  if (static_cast<size_t>(id) >= tokens->size()) tokens->resize(static_cast<size_t>(id) + 1);
  Token& place = (*tokens)[id];
  if (!place.text.empty() && place.text != token.text) return false;
  place = token;
  return true;
}

absl::Status ReadVocabulary(const JsonNode& node, JsonTokenizer::Parts* parts) {
  if (!node.value().is_object()) return node.Error("expected an object");
  for (const auto& [text, value] : node.value().items()) {
    // With the path of the whole, for that of each of 100,000 tokens would be made for nothing.
    const absl::StatusOr<int64_t> id = JsonNode(&value, node.path()).Int(0, kIdMax);
    if (!id.ok()) return node[text].Int(0, kIdMax).status();
    if (text.empty()) return node[text].Error("a token has no text");
    if (!PutToken(*id, {.text = text}, &parts->tokens)) {
      return node[text].Error("another token has this id");
    }
    parts->model.AddToken(text, static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

// "a b" or ["a", "b"].
absl::StatusOr<std::pair<std::string, std::string>> ReadMergePair(const JsonNode& node) {
  const nlohmann::json& value = node.value();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return node.Error("expected two tokens with one space between them");
    }
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return std::pair(value[0].get<std::string>(), value[1].get<std::string>());
  }
  return node.Error("expected \"a b\" or [\"a\", \"b\"]");
}

absl::Status ReadMerges(const JsonNode& node, Bpe* model) {
  EDDY_RETURN_IF_ERROR(node.CheckArray());
  uint32_t rank = 0;
  for (size_t i = 0; i < node.size(); ++i) {
    const nlohmann::json& value = node.value()[i];
    // A header that a text file of merges begins with.
    if (value.is_string() && value.get_ref<const std::string&>().starts_with("#version")) continue;
    const JsonNode entry = node.At(i);
    EDDY_ASSIGN_OR_RETURN(const auto pair, ReadMergePair(entry));
    const std::optional<int32_t> left = model->IdOf(pair.first), right = model->IdOf(pair.second);
    const std::optional<int32_t> both = model->IdOf(pair.first + pair.second);
    if (!left.has_value() || !right.has_value() || !both.has_value()) {
      return entry.Error("expected tokens that are, apart and joined, in model.vocab");
    }
    model->AddMerge(*left, *right, {.rank = rank++, .id = *both});
  }
  return absl::OkStatus();
}

absl::Status CheckEmpty(const JsonNode& node) {
  if (node.is_null() || node.value() == "") return absl::OkStatus();
  return node.Error("only an empty one is supported");
}

absl::Status ReadModel(const JsonNode& node, JsonTokenizer::Parts* parts) {
  EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "dropout", "unk_token", "continuing_subword_prefix",
                                       "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                       "ignore_merges", "vocab", "merges"}));
  // Files of the first versions do not name the type; the keys above are BPE's alone.
  if (!node["type"].is_null() && node["type"].value() != "BPE") {
    return node["type"].Error("supported: BPE");
  }
  if (!node["dropout"].is_null() && node["dropout"].value() != 0.0) {
    return node["dropout"].Error("supported: null, 0");
  }
  EDDY_RETURN_IF_ERROR(CheckEmpty(node["continuing_subword_prefix"]));
  EDDY_RETURN_IF_ERROR(CheckEmpty(node["end_of_word_suffix"]));
  EDDY_RETURN_IF_ERROR(ReadVocabulary(node["vocab"], parts));
  EDDY_RETURN_IF_ERROR(ReadMerges(node["merges"], &parts->model));

  Bpe::Options options;
  EDDY_ASSIGN_OR_RETURN(options.fuse_unknown, node["fuse_unk"].BoolOr(false));
  EDDY_ASSIGN_OR_RETURN(options.byte_fallback, node["byte_fallback"].BoolOr(false));
  EDDY_ASSIGN_OR_RETURN(options.ignore_merges, node["ignore_merges"].BoolOr(false));
  if (!node["unk_token"].is_null()) {
    EDDY_ASSIGN_OR_RETURN(const std::string unknown, node["unk_token"].String());
    options.unknown = parts->model.IdOf(unknown);
    if (!options.unknown.has_value()) return node["unk_token"].Error("it is not in model.vocab");
  }
  parts->model.SetOptions(options);
  return absl::OkStatus();
}

absl::StatusOr<AddedToken> ReadAddedToken(const JsonNode& node) {
  EDDY_RETURN_IF_ERROR(node.CheckKeys(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  EDDY_ASSIGN_OR_RETURN(const int64_t id, node["id"].Int(0, kIdMax));
  token.id = static_cast<int32_t>(id);
  EDDY_ASSIGN_OR_RETURN(token.content, node["content"].String());
  EDDY_ASSIGN_OR_RETURN(token.single_word, node["single_word"].Bool());
  EDDY_ASSIGN_OR_RETURN(token.lstrip, node["lstrip"].Bool());
  EDDY_ASSIGN_OR_RETURN(token.rstrip, node["rstrip"].Bool());
  EDDY_ASSIGN_OR_RETURN(token.normalized, node["normalized"].Bool());
  EDDY_ASSIGN_OR_RETURN(token.special, node["special"].Bool());
  if (token.content.empty() || token.content.size() > kAddedBytesMax) {
    return node["content"].Error(absl::StrCat("expected 1 to ", kAddedBytesMax, " bytes"));
  }
  return token;
}

absl::StatusOr<std::string> Normalized(const std::string& content,
                                       const std::vector<NormalizerStep>& normalizer) {
  Pieces pieces(content);
  EDDY_RETURN_IF_ERROR(Normalize(normalizer, &pieces));
  return pieces.text;
}

absl::Status ReadAddedTokens(const JsonNode& node, JsonTokenizer::Parts* parts) {
  if (node.is_null()) return absl::OkStatus();
  EDDY_RETURN_IF_ERROR(node.CheckArray());
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < node.size(); ++i) {
    EDDY_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(node.At(i)));
    const std::optional<int32_t> known = parts->model.IdOf(token.content);
    if (known.has_value() && *known != token.id) {
      return node.At(i)["id"].Error(absl::StrCat("model.vocab has this token with id ", *known));
    }
    const Token entry = {.text = token.content, .special = token.special};
    if (!PutToken(token.id, entry, &parts->tokens)) {
      return node.At(i)["id"].Error("another token has this id");
    }
    tokens.push_back(std::move(token));
  }
  // Where two are sought as the same text, special ones go first.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : tokens) {
      if (token.special != special) continue;
      if (token.normalized) {
        EDDY_ASSIGN_OR_RETURN(const std::string pattern,
                              Normalized(token.content, parts->normalizer));
        parts->normalized_added.Add(token, pattern);
      } else {
        parts->raw_added.Add(token, token.content);
      }
    }
  }
  return absl::OkStatus();
}

// The ids that a template puts in front of the text. What it puts behind is left away: texts here
// are there to be continued.
absl::Status ReadTemplate(const JsonNode& node, const std::vector<Token>& tokens,
                          std::vector<int32_t>* prefix) {
  EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "single", "pair", "special_tokens"}));
  EDDY_RETURN_IF_ERROR(node["single"].CheckArray());
  for (size_t i = 0; i < node["single"].size(); ++i) {
    const JsonNode element = node["single"].At(i);
    EDDY_RETURN_IF_ERROR(element.CheckKeys({"SpecialToken", "Sequence"}));
    if (!element["Sequence"].is_null()) return absl::OkStatus();
    EDDY_ASSIGN_OR_RETURN(const std::string name, element["SpecialToken"]["id"].String());
    const JsonNode ids = node["special_tokens"][name]["ids"];
    EDDY_RETURN_IF_ERROR(ids.CheckArray());
    for (size_t k = 0; k < ids.size(); ++k) {
      EDDY_ASSIGN_OR_RETURN(const int64_t id, ids.At(k).Int(0, kIdMax));
      if (static_cast<size_t>(id) >= tokens.size() || tokens[id].text.empty()) {
        return ids.At(k).Error("no token has this id");
      }
      prefix->push_back(static_cast<int32_t>(id));
    }
  }
  return node["single"].Error("expected a Sequence in it");
}

absl::Status ReadPostProcessor(const JsonNode& node, int depth, const std::vector<Token>& tokens,
                               std::vector<int32_t>* prefix) {
  if (node.is_null()) return absl::OkStatus();
  EDDY_ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type == "TemplateProcessing") {
    if (!prefix->empty()) return node.Error("only one template is supported");
    return ReadTemplate(node, tokens, prefix);
  }
  if (type == "ByteLevel") {  // changes offsets only
    return node.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  if (type != "Sequence") {
    return node["type"].Error("supported: Sequence, ByteLevel, TemplateProcessing");
  }
  EDDY_RETURN_IF_ERROR(node.CheckKeys({"type", "processors"}));
  EDDY_RETURN_IF_ERROR(node["processors"].CheckArray());
  if (depth >= kDepthMax) return node.Error(absl::StrCat("more than ", kDepthMax, " nested"));
  for (size_t i = 0; i < node["processors"].size(); ++i) {
    EDDY_RETURN_IF_ERROR(ReadPostProcessor(node["processors"].At(i), depth + 1, tokens, prefix));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> ReadTokenizerJson(std::string_view file_content) {
  const nlohmann::json json =
      nlohmann::json::parse(file_content, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("the file is not valid JSON");
  const JsonNode root(&json, "");
  // How a batch of texts is cut and filled up (truncation, padding) does not concern one text.
  EDDY_RETURN_IF_ERROR(
      root.CheckKeys({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"}));
  if (!root["version"].is_null() && root["version"].value() != "1.0") {
    return root["version"].Error("supported: \"1.0\"");
  }
  JsonTokenizer::Parts parts;
  EDDY_RETURN_IF_ERROR(ReadModel(root["model"], &parts));
  EDDY_ASSIGN_OR_RETURN(parts.normalizer, ReadNormalizer(root["normalizer"]));
  EDDY_ASSIGN_OR_RETURN(parts.pre_tokenizer, ReadPreTokenizer(root["pre_tokenizer"]));
  EDDY_ASSIGN_OR_RETURN(parts.decoder, ReadDecoder(root["decoder"]));
  EDDY_RETURN_IF_ERROR(ReadAddedTokens(root["added_tokens"], &parts));
  EDDY_RETURN_IF_ERROR(ReadPostProcessor(root["post_processor"], 0, parts.tokens, &parts.prefix));
  return std::make_unique<JsonTokenizer>(std::move(parts));
}

}  // namespace eddy
