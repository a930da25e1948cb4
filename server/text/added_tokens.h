// Tokens that are cut out of the text before all else, such as <|endoftext|>.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/text/pieces.h"
#include "server/text/prefix_trie.h"

namespace eddy {

// One of tokenizer.json's added_tokens.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // counts only if no word character touches it
  bool lstrip = false;       // takes white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // sought in the normalised text
  bool special = false;
};

// A set of added tokens to cut out at once. Immutable after the last Add, any thread.
class AddedTokenSet {
 public:
  // `pattern` is what is sought: the content, or the normalised content. An empty one is nowhere.
  void Add(const AddedToken& token, std::string_view pattern);
  // Whether one of them takes white space along, of which there may be any amount.
  bool takes_white_space() const;
  size_t longest_pattern() const { return longest_pattern_; }  // bytes
  // Cuts the pieces without an id; leftmost tokens first, the longest of them. `literal_special`:
  // special tokens are left as text.
  void CutOut(bool literal_special, Pieces* pieces) const;

 private:
  void CutPiece(const Pieces& pieces, const Piece& piece, bool literal_special,
                std::vector<Piece>* list) const;
  PrefixTrie trie_;  // values are places in tokens_
  std::vector<AddedToken> tokens_;
  size_t longest_pattern_ = 0;
};

}  // namespace eddy
