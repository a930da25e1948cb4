// Small tokenizers made by hand, for tests.
#pragma once

#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/text/pieces.h"
#include "server/text/sentencepiece_model.h"
#include "server/text/tokenizer.h"

namespace eddy {

// A tokenizer.json of byte-level BPE: all 256 bytes (ids 0-255 in the order of bytes), then "he"
// "ll" "hell" "hello" "Ġhe"; added <|end|> (special) and "MASK" (takes white space before it
// along).
nlohmann::json TinyByteLevelJson();
// A tokenizer.json as SentencePiece models are converted to: <unk> <s> </s>, 256 bytes, then
// characters and merges of "▁hello" and "▁a"; a template puts <s> in front.
nlohmann::json TinySpaceMarkJson();
// The wire form of a model with these pieces, as libsentencepiece writes it.
std::string ModelFile(const SentencePieceModel& model);
// <unk> <s> </s> "\n"(user-defined), 256 bytes from id 4, then pieces of "▁hello" and "▁a".
SentencePieceModel TinyModel();

// REQUIRES: it is valid.
std::unique_ptr<const Tokenizer> FromJson(const nlohmann::json& json);
std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, const std::string& text);
// That random texts of what `parts` holds, never have fewer tokens
// than the tokenizer says.
void ExpectNeverFewer(const Tokenizer& tokenizer, const std::vector<std::string>& parts);
// The texts of the tokens, which are easier to read than ids.
std::vector<std::string> TokenTexts(const Tokenizer& tokenizer, const std::string& text);
// The texts of pieces.
std::vector<std::string> Texts(const Pieces& pieces);
// What a decoder gives for `ids` put in one by one, part after part.
std::vector<std::string> DecodeInParts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                       bool special_tokens);
// Spans are in order and no byte is in two.
void ExpectOrdered(const std::vector<TokenSpan>& spans, size_t text_size);

}  // namespace eddy
