// A SentencePiece BPE model at work, as libsentencepiece 0.1.97 has it (Kudo and Richardson,
// "SentencePiece", 2018).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "server/text/merge.h"
#include "server/text/pieces.h"
#include "server/text/prefix_trie.h"
#include "server/text/sentencepiece_model.h"
#include "server/text/tokenizer.h"

namespace eddy {

// Control pieces are special. The unknown piece is not: it decodes to the model's unk_surface.
class SentencePieceTokenizer : public Tokenizer {
 public:
  // `bos` is put in front of texts. REQUIRES: it is an id of the model.
  SentencePieceTokenizer(SentencePieceModel model, std::optional<int32_t> bos);

  // Names of control pieces in the text are plain characters, whatever the options.
  absl::StatusOr<std::vector<TokenSpan>> EncodeSpans(std::string_view text,
                                                     const EncodeOptions& options) const override;
  size_t FewestTokens(std::string_view text) const override;
  std::unique_ptr<TokenDecoder> NewDecoder(bool special_tokens) const override;
  std::string Bytes(int32_t id) const override;
  bool IsSpecial(int32_t id) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(model_.pieces.size()); }

 private:
  class Decoder;
  struct MergeRules;
  bool Has(int32_t id) const { return id >= 0 && id < vocab_size(); }
  Pieces Normalize(std::string_view text) const;
  std::vector<Symbol> FirstSymbols(std::string_view text) const;
  // The id of an ordinary piece with this text, or -1.
  int32_t OrdinaryId(std::string_view text) const;
  // The id of any piece with this text; that of the unknown one if there is none.
  int32_t IdOf(std::string_view text) const;
  void AddSpans(const Pieces& text, const Symbol& symbol, std::vector<TokenSpan>* spans) const;

  SentencePieceModel model_;
  std::optional<int32_t> bos_;
  // Keys lie in model_.pieces.
  absl::flat_hash_map<absl::string_view, int32_t> ordinary_, reserved_;
  std::vector<uint32_t> ranks_;  // by id; the highest score is rank 0
  std::array<int32_t, 256> byte_ids_ = {};
  PrefixTrie user_defined_;
  size_t ordinary_size_max_ = 0;  // bytes
};

}  // namespace eddy
