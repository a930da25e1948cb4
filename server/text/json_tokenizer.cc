#include "server/text/json_tokenizer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/status.h"
#include "base/utf8.h"
#include "server/text/byte_alphabet.h"

namespace eddy {

namespace {

bool Keeps(const NormalizerStep& step) {
  if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
    const std::string* const literal = replace->pattern.literal();
    return literal != nullptr && literal->size() <= replace->content.size();
  }
  return std::holds_alternative<PrependStep>(step);
}

bool Keeps(const PreTokenizerStep& step) {
  const auto* const split = std::get_if<SplitStep>(&step);
  return split == nullptr || split->behavior != SplitBehavior::kRemoved;
}

// The most bytes of a text that one token stands for; 0: there is no bound. Where no step takes
// anything away, every byte is in a token, and no token stands for more than its own text or what
// it is sought as.
size_t MostBytesPerToken(const JsonTokenizer::Parts& parts) {
  const auto keeps = [](const auto& step) { return Keeps(step); };
  const bool bytes =
      std::any_of(parts.pre_tokenizer.begin(), parts.pre_tokenizer.end(),
                  [](const auto& step) { return std::holds_alternative<ByteAlphabetStep>(step); });
  if (!std::all_of(parts.normalizer.begin(), parts.normalizer.end(), keeps) ||
      !std::all_of(parts.pre_tokenizer.begin(), parts.pre_tokenizer.end(), keeps) ||
      parts.raw_added.takes_white_space() || parts.normalized_added.takes_white_space() ||
      !(bytes ? parts.model.has_byte_alphabet() : parts.model.falls_back_on_bytes())) {
    return 0;
  }
  size_t most =
      std::max(parts.raw_added.longest_pattern(), parts.normalized_added.longest_pattern());
  for (const JsonTokenizer::Token& token : parts.tokens) most = std::max(most, token.text.size());
  return most;
}

}  // namespace

JsonTokenizer::JsonTokenizer(Parts parts)
    : parts_(std::move(parts)), most_bytes_per_token_(MostBytesPerToken(parts_)) {}

size_t JsonTokenizer::FewestTokens(std::string_view text) const {
  return most_bytes_per_token_ == 0 ? 0 : text.size() / most_bytes_per_token_;
}

class JsonTokenizer::Decoder : public TokenDecoder {
 public:
  Decoder(const JsonTokenizer* tokenizer, bool special_tokens)
      : tokenizer_(tokenizer),
        special_tokens_(special_tokens),
        chain_(tokenizer->parts_.decoder, &certain_) {}

  void Put(int32_t id, std::string* text) override {
    const Token* token = tokenizer_->Find(id);
    if (token == nullptr || (token->special && !special_tokens_)) return;
    chain_.Put(token->text);
    Give(text);
  }
  void Flush(std::string* text) override {
    chain_.Flush();
    Give(text);
  }

 private:
  void Give(std::string* text) {
    text->append(certain_);
    certain_.clear();
  }

  const JsonTokenizer* tokenizer_;
  bool special_tokens_;
  std::string certain_;
  DecodeChain chain_;
};

absl::StatusOr<std::vector<TokenSpan>> JsonTokenizer::EncodeSpans(
    std::string_view text, const EncodeOptions& options) const {
  EDDY_CHECK(text.size() < UINT32_MAX && IsUtf8(text));
  Pieces pieces(text);
  parts_.raw_added.CutOut(options.literal_special_tokens, &pieces);
  EDDY_RETURN_IF_ERROR(Normalize(parts_.normalizer, &pieces));
  parts_.normalized_added.CutOut(options.literal_special_tokens, &pieces);
  EDDY_RETURN_IF_ERROR(PreTokenize(parts_.pre_tokenizer, &pieces));

  std::vector<TokenSpan> spans;
  if (options.add_bos) {
    for (const int32_t id : parts_.prefix) spans.push_back({.id = id});
  }
  std::vector<WordToken> tokens;
  uint32_t covered = 0;
  for (const Piece& piece : pieces.list) {
    tokens.clear();
    if (piece.id >= 0) {
      tokens.push_back({.id = piece.id, .begin = 0, .end = piece.end - piece.begin});
    } else {
      parts_.model.Encode(pieces.View(piece), &tokens);
    }
    for (const WordToken& token : tokens) {
      // Unknown characters may come behind bytes that follow them in the text; see Bpe.
      const uint32_t begin = std::max(covered, pieces.origin[piece.begin + token.begin]);
      covered = std::max(begin, pieces.origin[piece.begin + token.end]);
      spans.push_back({.id = token.id, .begin = begin, .end = covered});
    }
  }
  return spans;
}

std::unique_ptr<TokenDecoder> JsonTokenizer::NewDecoder(bool special_tokens) const {
  return std::make_unique<Decoder>(this, special_tokens);
}

const JsonTokenizer::Token* JsonTokenizer::Find(int32_t id) const {
  if (id < 0 || id >= vocab_size() || parts_.tokens[id].text.empty()) return nullptr;
  return &parts_.tokens[id];
}

std::string JsonTokenizer::Bytes(int32_t id) const {
  const Token* token = Find(id);
  if (token == nullptr) return "";
  std::string bytes = token->text;
  if (token->special) return bytes;
  for (const DecodeStep& step : parts_.decoder) {
    // Only what acts on a token wherever it stands; Strip and joining act on its place in the text.
    if (std::holds_alternative<BytesFromAlphabet>(step)) return BytesOfToken(bytes);
    if (std::holds_alternative<BytesFromNames>(step)) {
      if (const auto byte = ByteOfName(bytes)) return std::string(1, static_cast<char>(*byte));
    }
    std::string changed;
    if (std::holds_alternative<ReplaceInTokens>(step)) {
      DecodeChain chain({step}, &changed);
      chain.Put(bytes);
      bytes = std::move(changed);
    } else if (const auto* marks = std::get_if<SpacesFromMarks>(&step)) {
      DecodeChain chain({SpacesFromMarks{.replacement = marks->replacement, .drop_first = false}},
                        &changed);
      chain.Put(bytes);
      bytes = std::move(changed);
    }
  }
  return bytes;
}

bool JsonTokenizer::IsSpecial(int32_t id) const {
  const Token* token = Find(id);
  return token != nullptr && token->special;
}

}  // namespace eddy
