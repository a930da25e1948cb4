#include "server/text/added_tokens.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "server/text/regex.h"
#include "server/text/white_space.h"

namespace eddy {
namespace {

// A word character as Unicode has it (UTS 18, annex C: Alphabetic, M, Nd, Pc, Join_Control).
bool IsWordCharacter(std::string_view text, size_t at, size_t size) {
  static const absl::StatusOr<Regex> word =
      Regex::Compile(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])");
  EDDY_CHECK(word.ok());
  std::vector<Match> matches;
  EDDY_CHECK(word->FindAll(text.substr(at, size), &matches).ok());
  return !matches.empty();
}

bool WordEndsAt(std::string_view text, size_t at) {
  if (at == 0) return false;
  const size_t size = ReadUtf8Before(text, at).size;
  return IsWordCharacter(text, at - size, size);
}

bool WordBeginsAt(std::string_view text, size_t at) {
  return at < text.size() && IsWordCharacter(text, at, ReadUtf8(text, at).size);
}

size_t SpaceBefore(std::string_view text, size_t at) {
  while (at > 0) {
    const Utf8Char c = ReadUtf8Before(text, at);
    if (!IsWhiteSpace(c.value)) break;
    at -= c.size;
  }
  return at;
}

size_t SpaceBehind(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char c = ReadUtf8(text, at);
    if (!IsWhiteSpace(c.value)) break;
    at += c.size;
  }
  return at;
}

}  // namespace

void AddedTokenSet::Add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  trie_.Add(pattern, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
  longest_pattern_ = std::max(longest_pattern_, pattern.size());
}

bool AddedTokenSet::takes_white_space() const {
  return std::any_of(tokens_.begin(), tokens_.end(),
                     [](const AddedToken& token) { return token.lstrip || token.rstrip; });
}

void AddedTokenSet::CutOut(bool literal_special, Pieces* pieces) const {
  if (trie_.empty()) return;
  std::vector<Piece> list;
  for (const Piece& piece : pieces->list) {
    if (piece.id >= 0) {
      list.push_back(piece);
    } else {
      CutPiece(*pieces, piece, literal_special, &list);
    }
  }
  pieces->list = std::move(list);
}

void AddedTokenSet::CutPiece(const Pieces& pieces, const Piece& piece, bool literal_special,
                             std::vector<Piece>* list) const {
  const std::string_view text = pieces.View(piece);
  size_t done = 0, at = 0;
  const auto put = [&](size_t begin, size_t end, int32_t id) {
    list->push_back({.begin = piece.begin + begin, .end = piece.begin + end, .id = id});
  };
  while (at < text.size()) {
    const std::optional<PrefixTrie::Found> found = trie_.Longest(text, at);
    if (!found.has_value()) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found->value];
    size_t begin = at, end = at + found->size;
    // The search goes on behind what was found, even if it does not count.
    at = end;
    if (literal_special && token.special) continue;
    if (token.single_word && (WordEndsAt(text, begin) || WordBeginsAt(text, end))) continue;
    if (token.rstrip) end = SpaceBehind(text, end);
    // What the token before took along is not taken again; one of white space may be gone whole.
    if (token.lstrip) begin = std::max(SpaceBefore(text, begin), done);
    if (token.lstrip && begin >= end) continue;
    begin = std::max(begin, done);
    end = std::max(end, begin);
    if (done < begin) put(done, begin, -1);
    put(begin, end, token.id);
    done = end;
  }
  if (done < text.size()) put(done, text.size(), -1);
}

}  // namespace eddy
