#include "server/text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "server/text/decode_steps.h"

namespace eddy {
namespace {

using Type = SentencePieceModel::Type;

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr int32_t kNoPiece = -1, kUserDefinedSymbol = -2;

absl::string_view Key(std::string_view text) { return {text.data(), text.size()}; }

std::string SpacesForMarks(std::string_view text) {
  std::string spaced;
  DecodeChain chain({ReplaceInTokens{.from = std::string(kSpaceMark), .to = " "}}, &spaced);
  chain.Put(text);
  return spaced;
}

}  // namespace

// Two symbols merge if their joined text is a piece, which then is the new symbol. A merge into an
// unused piece is remembered, to be undone in the end.
struct SentencePieceTokenizer::MergeRules {
  const SentencePieceTokenizer& tokenizer;
  std::string_view text;
  absl::flat_hash_map<int32_t, size_t> unused_left_size;  // by id; the last pair offered counts

  std::optional<Merge> Find(const Symbol& left, const Symbol& right) const {
    if (left.id == kUserDefinedSymbol || right.id == kUserDefinedSymbol) return std::nullopt;
    const int32_t id = tokenizer.OrdinaryId(text.substr(left.begin, right.end - left.begin));
    if (id < 0) return std::nullopt;
    return Merge{.rank = tokenizer.ranks_[id], .id = id};
  }
  void Offered(const Symbol& left, const Symbol&, const Merge& merge) {
    if (tokenizer.model_.pieces[merge.id].type != Type::kUnused) return;
    unused_left_size[merge.id] = left.end - left.begin;
  }
};

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceModel model, std::optional<int32_t> bos)
    : model_(std::move(model)), bos_(bos), ranks_(model_.pieces.size()) {
  EDDY_CHECK(!bos_.has_value() || Has(*bos_));
  std::vector<float> scores;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const SentencePieceModel::Piece& piece = model_.pieces[id];
    scores.push_back(piece.score);
    if (piece.type == Type::kByte) byte_ids_[*ByteOfName(piece.text)] = id;
    if (piece.type == Type::kUserDefined) user_defined_.Add(piece.text, id);
    const bool ordinary = piece.type == Type::kNormal || piece.type == Type::kUserDefined ||
                          piece.type == Type::kUnused;
    (ordinary ? ordinary_ : reserved_).emplace(piece.text, id);
    if (ordinary) ordinary_size_max_ = std::max(ordinary_size_max_, piece.text.size());
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const auto place =
        std::lower_bound(scores.begin(), scores.end(), model_.pieces[id].score, std::greater<>());
    ranks_[id] = static_cast<uint32_t>(place - scores.begin());
  }
}

int32_t SentencePieceTokenizer::OrdinaryId(std::string_view text) const {
  if (text.size() > ordinary_size_max_) return kNoPiece;
  const auto found = ordinary_.find(Key(text));
  return found == ordinary_.end() ? kNoPiece : found->second;
}

int32_t SentencePieceTokenizer::IdOf(std::string_view text) const {
  if (const auto found = reserved_.find(Key(text)); found != reserved_.end()) return found->second;
  const int32_t id = OrdinaryId(text);
  return id == kNoPiece ? model_.unknown : id;
}

Pieces SentencePieceTokenizer::Normalize(std::string_view text) const {
  const Pieces original(text);
  Pieces result;
  const auto put = [&](std::string_view part, size_t origin) {
    result.text.append(part);
    result.origin.resize(result.text.size(), static_cast<uint32_t>(origin));
  };
  const std::string_view space = model_.escape_whitespaces ? kSpaceMark : " ";
  // A user-defined piece that stands in the text is one unit, as is each other character.
  const auto unit_size = [&](size_t at) {
    const std::optional<PrefixTrie::Found> found = user_defined_.Longest(text, at);
    return found.has_value() ? found->size : ReadUtf8(text, at).size;
  };
  const bool remove = model_.remove_extra_whitespaces;
  size_t at = 0;
  while (remove && at < text.size() && text.substr(at, unit_size(at)) == " ") ++at;
  if (at < text.size() && model_.add_dummy_prefix) put(space, at);
  bool after_space = remove;
  while (at < text.size()) {
    const size_t size = unit_size(at);
    size_t i = at;
    while (after_space && i < at + size && text[i] == ' ') ++i;
    const bool kept = i < at + size;
    // Within a unit of several characters, each keeps its own place.
    for (; i < at + size; ++i) put(text[i] == ' ' ? space : text.substr(i, 1), i);
    if (kept) after_space = remove && text[at + size - 1] == ' ';
    at += size;
  }
  size_t end = text.size();
  while (remove && result.text.ends_with(space)) {
    end = result.origin[result.text.size() - space.size()];
    result.text.resize(result.text.size() - space.size());
  }
  result.origin.resize(result.text.size());
  result.origin.push_back(static_cast<uint32_t>(end));
  return result;
}

std::vector<Symbol> SentencePieceTokenizer::FirstSymbols(std::string_view text) const {
  std::vector<Symbol> symbols;
  symbols.reserve(text.size());
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    const std::optional<PrefixTrie::Found> found = user_defined_.Longest(text, begin);
    end = begin + (found.has_value() ? found->size : ReadUtf8(text, begin).size);
    symbols.push_back(
        {.id = found.has_value() ? kUserDefinedSymbol : kNoPiece, .begin = begin, .end = end});
  }
  return symbols;
}

void SentencePieceTokenizer::AddSpans(const Pieces& text, const Symbol& symbol,
                                      std::vector<TokenSpan>* spans) const {
  const uint32_t begin = text.origin[symbol.begin], end = text.origin[symbol.end];
  if (symbol.id != model_.unknown) {
    spans->push_back({.id = symbol.id, .begin = begin, .end = end});
    return;
  }
  if (model_.byte_fallback) {
    for (size_t i = symbol.begin; i < symbol.end; ++i) {
      spans->push_back({.id = byte_ids_[static_cast<uint8_t>(text.text[i])],
                        .begin = text.origin[i],
                        .end = text.origin[i + 1]});
    }
    return;
  }
  // A run of unknown characters is one token.
  if (!spans->empty() && spans->back().id == model_.unknown) {
    spans->back().end = end;
  } else {
    spans->push_back({.id = model_.unknown, .begin = begin, .end = end});
  }
}

absl::StatusOr<std::vector<TokenSpan>> SentencePieceTokenizer::EncodeSpans(
    std::string_view text, const EncodeOptions& options) const {
  EDDY_CHECK(text.size() < UINT32_MAX && IsUtf8(text));
  const Pieces normal = Normalize(text);
  std::vector<Symbol> symbols = FirstSymbols(normal.text);
  MergeRules rules{.tokenizer = *this, .text = normal.text, .unused_left_size = {}};
  MergeSymbols(&symbols, &rules);

  std::vector<TokenSpan> spans;
  if (options.add_bos && bos_.has_value()) spans.push_back({.id = *bos_});
  std::vector<Symbol> todo;  // of one symbol that is being undone, the leftmost on top
  for (const Symbol& symbol : symbols) {
    todo.push_back(symbol);
    while (!todo.empty()) {
      Symbol part = todo.back();
      todo.pop_back();
      part.id = IdOf(std::string_view(normal.text).substr(part.begin, part.end - part.begin));
      const auto unused = rules.unused_left_size.find(part.id);
      const size_t left_size = unused == rules.unused_left_size.end() ? 0 : unused->second;
      if (left_size == 0 || model_.pieces[part.id].type != Type::kUnused) {
        AddSpans(normal, part, &spans);
        continue;
      }
      todo.push_back({.begin = part.begin + left_size, .end = part.end});
      todo.push_back({.begin = part.begin, .end = part.begin + left_size});
    }
  }
  return spans;
}

size_t SentencePieceTokenizer::FewestTokens(std::string_view text) const {
  // Without bytes to fall back on, a run of unknown characters of any length is one token.
  if (!model_.byte_fallback) return 0;
  // Spaces and their marks may be taken away; a space that stays becomes no shorter.
  auto kept = text.size() - static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
  for (size_t at = text.find(kSpaceMark); at != text.npos; at = text.find(kSpaceMark, at)) {
    kept -= kSpaceMark.size();
    at += kSpaceMark.size();
  }
  return kept / std::max<size_t>(ordinary_size_max_, 1);
}

class SentencePieceTokenizer::Decoder : public TokenDecoder {
 public:
  Decoder(const SentencePieceTokenizer* tokenizer, bool special_tokens)
      : tokenizer_(tokenizer), special_tokens_(special_tokens) {}

  void Put(int32_t id, std::string* text) override {
    if (!tokenizer_->Has(id)) return;
    // A piece is what its text is, whichever of two ids with one text was given.
    const int32_t canonical = tokenizer_->IdOf(tokenizer_->model_.pieces[id].text);
    const SentencePieceModel::Piece& piece = tokenizer_->model_.pieces[canonical];
    if (piece.type == Type::kByte) {
      repair_.Put(*ByteOfName(piece.text), text);
      any_text_ = true;
      return;
    }
    repair_.Flush(text);
    if (any_text_) at_front_ = false;
    const size_t size_before = text->size();
    if (piece.type == Type::kControl) {
      // Its name is shown, but is no text: what comes first behind it still comes first.
      if (special_tokens_) text->append(piece.text);
      return;
    }
    if (piece.type == Type::kUnknown) {
      text->append(tokenizer_->model_.unknown_surface);
    } else {
      text->append(SpacesForMarks(Body(piece.text)));
    }
    any_text_ = any_text_ || text->size() > size_before;
  }
  void Flush(std::string* text) override { repair_.Flush(text); }

 private:
  // The piece without the mark that encoding puts, or takes away, in front of a text.
  std::string_view Body(std::string_view piece) {
    const SentencePieceModel& model = tokenizer_->model_;
    const bool consume = at_front_ && (model.add_dummy_prefix || model.remove_extra_whitespaces);
    if (!consume || !piece.starts_with(kSpaceMark)) return piece;
    // If extra spaces are removed, then from every piece up to the first with text.
    at_front_ = model.remove_extra_whitespaces;
    return piece.substr(kSpaceMark.size());
  }

  const SentencePieceTokenizer* tokenizer_;
  bool special_tokens_;
  Utf8Repair repair_{/*per_byte=*/true};
  bool any_text_ = false;  // text was decoded, names of control pieces aside
  bool at_front_ = true;   // the next piece may lose its mark
};

std::unique_ptr<TokenDecoder> SentencePieceTokenizer::NewDecoder(bool special_tokens) const {
  return std::make_unique<Decoder>(this, special_tokens);
}

std::string SentencePieceTokenizer::Bytes(int32_t id) const {
  if (!Has(id)) return "";
  const SentencePieceModel::Piece& piece = model_.pieces[id];
  if (piece.type == Type::kByte) return std::string(1, static_cast<char>(*ByteOfName(piece.text)));
  if (piece.type == Type::kControl || piece.type == Type::kUnknown) return piece.text;
  return SpacesForMarks(piece.text);
}

bool SentencePieceTokenizer::IsSpecial(int32_t id) const {
  return Has(id) && model_.pieces[id].type == Type::kControl;
}

}  // namespace eddy
