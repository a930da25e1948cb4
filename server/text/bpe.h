// Byte-pair encoding by a list of merges, as tokenizer.json has it (Sennrich et al., "Neural
// machine translation of rare words with subword units", 2016).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "server/text/merge.h"

namespace eddy {

// A token and the bytes [begin, end) of the word that it covers.
struct WordToken {
  int32_t id = 0;
  size_t begin = 0, end = 0;
};

// Immutable after building, any thread.
class Bpe {
 public:
  struct Options {
    std::optional<int32_t> unknown;  // for characters that are not in the vocabulary
    bool fuse_unknown = false;       // a run of them is one token
    bool byte_fallback = false;      // they become <0x00> ... <0xFF> where all of these are there
    bool ignore_merges = false;      // a word that is in the vocabulary is one token
  };

  // Returns the id that `token` has already, or nothing once it is added.
  std::optional<int32_t> AddToken(std::string_view token, int32_t id);
  std::optional<int32_t> IdOf(std::string_view token) const;
  // Of equal pairs the last counts.
  void AddMerge(int32_t left, int32_t right, const Merge& merge);
  // Call after the last AddToken.
  void SetOptions(const Options& options);

  // Whether the characters of byte_alphabet.h all have a token, so that no byte is left out.
  bool has_byte_alphabet() const;
  // Whether every character that is not in the vocabulary becomes bytes.
  bool falls_back_on_bytes() const;
  // Appends the tokens of one word. Characters that nothing stands for are left out.
  void Encode(std::string_view word, std::vector<WordToken>* tokens) const;

 private:
  struct MergeRules;
  std::vector<Symbol> FirstSymbols(std::string_view word) const;
  // Symbols for the bytes of the character at word[begin, end), if all of them are there.
  bool PutBytes(std::string_view word, size_t begin, size_t end,
                std::vector<Symbol>* symbols) const;

  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by both ids
  std::array<int32_t, 256> byte_ids_ = {};       // -1: not there
  Options options_;
};

}  // namespace eddy
