// The tokenizer without a vocabulary: an id is a byte, special tokens begin at 256.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/text/tokenizer.h"

namespace eddy {

// Special token 256 + n is named <special_n>. Names in the text are plain characters, whatever the
// options.
class ByteTokenizer : public Tokenizer {
 public:
  // `bos` is put in front of texts. REQUIRES: vocab_size >= 256, and bos is below it.
  ByteTokenizer(int32_t vocab_size, std::optional<int32_t> bos);

  absl::StatusOr<std::vector<TokenSpan>> EncodeSpans(std::string_view text,
                                                     const EncodeOptions& options) const override;
  size_t FewestTokens(std::string_view text) const override;
  std::unique_ptr<TokenDecoder> NewDecoder(bool special_tokens) const override;
  std::string Bytes(int32_t id) const override;
  bool IsSpecial(int32_t id) const override;
  int32_t vocab_size() const override { return vocab_size_; }

 private:
  class Decoder;
  int32_t vocab_size_;
  std::optional<int32_t> bos_;
};

}  // namespace eddy
