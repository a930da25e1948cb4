// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eddy {

struct EncodeOptions {
  // Put the beginning-of-text token in front, if the tokenizer asks for it.
  bool add_bos = true;
  // Read names of special tokens in the text as plain characters.
  bool literal_special_tokens = false;
};

// One token and the bytes of the text it covers.
struct TokenSpan {
  int32_t id = 0;
  uint32_t begin = 0, end = 0;  // bytes; begin == end for a token that covers nothing, such as BOS
};

// A token's part in decoded text, one after another; see Detokenizer. Made by
// Tokenizer::NewDecoder.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // Appends to `text` what is certain once `id` is known: whole UTF-8 characters only.
  virtual void Put(int32_t id, std::string* text) = 0;
  // Appends what was held back; incomplete characters become U+FFFD. Nothing may follow.
  virtual void Flush(std::string* text) = 0;
};

// Immutable after opening; any thread. Equal input gives equal output.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Spans are in order, no byte is in two of them, and together they cover all of `text` that the
  // tokenizer does not drop. Of tokens that share a character that cannot be split, the last covers
  // it. InvalidArgument if the text drives the tokenizer's patterns over their limit of steps.
  // REQUIRES: `text` is valid UTF-8 of less than 4 GiB.
  virtual absl::StatusOr<std::vector<TokenSpan>> EncodeSpans(
      std::string_view text, const EncodeOptions& options) const = 0;
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const;
  // No fewer tokens than this come of `text`, told without making them: for refusing texts that are
  // far too long. 0 if this tokenizer may drop text, or put any amount of it into one token.
  virtual size_t FewestTokens(std::string_view text) const = 0;
  // The decoded text of all of `ids`; special tokens as their text, or left out. Ids without a
  // token decode to nothing.
  std::string Decode(std::span<const int32_t> ids, bool special_tokens) const;
  // Incremental decoding in O(1) per token. The tokenizer outlives it.
  virtual std::unique_ptr<TokenDecoder> NewDecoder(bool special_tokens) const = 0;
  // The token's own bytes, which may be part of a character; a space is a space, a special token
  // its name. Empty for an id without a token.
  virtual std::string Bytes(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  virtual int32_t vocab_size() const = 0;  // ids are below this
};

// What a model's config says of its tokenizer.
struct TokenizerSpec {
  std::string kind;  // "tokenizer.json", "sentencepiece" or "bytes"
  std::string file;  // full path; empty for "bytes"
  // The model's. A tokenizer.json decides for itself whether and which; the other kinds cannot say,
  // so they put this one in front.
  std::optional<int32_t> bos;
  int32_t vocab_size = 0;  // the model's: a tokenizer with higher ids is refused
};

// InvalidArgument or NotFound with one line that names file, key, value and what is supported.
absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenTokenizer(const TokenizerSpec& spec);

}  // namespace eddy
