#include "server/text/bpe.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "server/text/byte_alphabet.h"

namespace eddy {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

struct Bpe::MergeRules {
  const absl::flat_hash_map<uint64_t, Merge>& merges;
  std::optional<Merge> Find(const Symbol& left, const Symbol& right) const {
    const auto found = merges.find(PairKey(left.id, right.id));
    if (found == merges.end()) return std::nullopt;
    return found->second;
  }
  void Offered(const Symbol&, const Symbol&, const Merge&) {}
};

std::optional<int32_t> Bpe::AddToken(std::string_view token, int32_t id) {
  const auto [entry, is_new] = ids_.try_emplace(std::string(token), id);
  if (is_new) return std::nullopt;
  return entry->second;
}

std::optional<int32_t> Bpe::IdOf(std::string_view token) const {
  const auto found = ids_.find(absl::string_view(token.data(), token.size()));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

void Bpe::AddMerge(int32_t left, int32_t right, const Merge& merge) {
  merges_[PairKey(left, right)] = merge;
}

void Bpe::SetOptions(const Options& options) {
  options_ = options;
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = IdOf(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
}

bool Bpe::has_byte_alphabet() const {
  for (int byte = 0; byte < 256; ++byte) {
    if (!IdOf(CharacterOfByte(static_cast<uint8_t>(byte))).has_value()) return false;
  }
  return true;
}

bool Bpe::falls_back_on_bytes() const {
  return options_.byte_fallback &&
         std::all_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id >= 0; });
}

bool Bpe::PutBytes(std::string_view word, size_t begin, size_t end,
                   std::vector<Symbol>* symbols) const {
  for (size_t i = begin; i < end; ++i) {
    if (byte_ids_[static_cast<uint8_t>(word[i])] < 0) return false;
  }
  for (size_t i = begin; i < end; ++i) {
    symbols->push_back({.id = byte_ids_[static_cast<uint8_t>(word[i])], .begin = i, .end = i + 1});
  }
  return true;
}

std::vector<Symbol> Bpe::FirstSymbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  // Unknown characters wait here until a known one follows; bytes are put in front of them, for so
  // does the format's original.
  std::optional<Symbol> waiting;
  for (size_t begin = 0, end = 0; begin < word.size(); begin = end) {
    end = begin + ReadUtf8(word, begin).size;
    if (const std::optional<int32_t> id = IdOf(word.substr(begin, end - begin))) {
      if (waiting.has_value()) symbols.push_back(*waiting);
      waiting.reset();
      symbols.push_back({.id = *id, .begin = begin, .end = end});
      continue;
    }
    if (options_.byte_fallback && PutBytes(word, begin, end, &symbols)) continue;
    if (!options_.unknown.has_value()) continue;
    if (waiting.has_value() && options_.fuse_unknown) {
      waiting->end = end;
      continue;
    }
    if (waiting.has_value()) symbols.push_back(*waiting);
    waiting = Symbol{.id = *options_.unknown, .begin = begin, .end = end};
  }
  if (waiting.has_value()) symbols.push_back(*waiting);
  return symbols;
}

void Bpe::Encode(std::string_view word, std::vector<WordToken>* tokens) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    if (const std::optional<int32_t> id = IdOf(word)) {
      tokens->push_back({.id = *id, .begin = 0, .end = word.size()});
      return;
    }
  }
  std::vector<Symbol> symbols = FirstSymbols(word);
  MergeRules rules{.merges = merges_};
  MergeSymbols(&symbols, &rules);
  for (const Symbol& symbol : symbols) {
    tokens->push_back({.id = symbol.id, .begin = symbol.begin, .end = symbol.end});
  }
}

}  // namespace eddy
