// A tokenizer as tokenizer.json describes it, at work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/text/added_tokens.h"
#include "server/text/bpe.h"
#include "server/text/decode_steps.h"
#include "server/text/normalizer.h"
#include "server/text/pretokenizer.h"
#include "server/text/tokenizer.h"

namespace eddy {

class JsonTokenizer : public Tokenizer {
 public:
  struct Token {
    std::string text;  // as in the vocabulary; empty if there is none with this id
    bool special = false;
  };
  // What the file says.
  struct Parts {
    std::vector<Token> tokens;       // by id
    AddedTokenSet raw_added;         // sought in the text as it comes
    AddedTokenSet normalized_added;  // and in the normalised text
    std::vector<NormalizerStep> normalizer;
    std::vector<PreTokenizerStep> pre_tokenizer;
    Bpe model;
    std::vector<DecodeStep> decoder;
    std::vector<int32_t> prefix;  // what is put in front of a text, such as BOS
  };
  explicit JsonTokenizer(Parts parts);

  absl::StatusOr<std::vector<TokenSpan>> EncodeSpans(std::string_view text,
                                                     const EncodeOptions& options) const override;
  size_t FewestTokens(std::string_view text) const override;
  std::unique_ptr<TokenDecoder> NewDecoder(bool special_tokens) const override;
  std::string Bytes(int32_t id) const override;
  bool IsSpecial(int32_t id) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(parts_.tokens.size()); }

 private:
  class Decoder;
  const Token* Find(int32_t id) const;
  const Parts parts_;
  const size_t most_bytes_per_token_;  // of a text; 0: any number
};

}  // namespace eddy
