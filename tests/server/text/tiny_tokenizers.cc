#include "tests/server/text/tiny_tokenizers.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "server/text/byte_alphabet.h"
#include "server/text/tokenizer_json.h"

namespace eddy {
namespace {

using nlohmann::json;

json Added(int id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

std::string ByteName(int byte) { return absl::StrFormat("<0x%02X>", byte); }

void PutVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void PutBytes(int field, const std::string& bytes, std::string* out) {
  PutVarint(static_cast<uint64_t>(field) << 3 | 2, out);
  PutVarint(bytes.size(), out);
  out->append(bytes);
}

void PutNumber(int field, uint64_t value, std::string* out) {
  PutVarint(static_cast<uint64_t>(field) << 3, out);
  PutVarint(value, out);
}

}  // namespace

json TinyByteLevelJson() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[std::string(CharacterOfByte(static_cast<uint8_t>(byte)))] = byte;
  }
  int id = 256;
  for (const char* token : {"he", "ll", "hell", "hello", "Ġhe"}) vocab[token] = id++;
  json mask = Added(262, "MASK", false);
  mask["lstrip"] = true;
  return {
      {"version", "1.0"},
      {"added_tokens", {Added(261, "<|end|>", true), mask}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", "l l", "he ll", "hell o", "Ġ he"}}}}};
}

json TinySpaceMarkJson() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[ByteName(byte)] = 3 + byte;
  int id = 259;
  for (const char* token :
       {"▁", "h", "e", "l", "o", "a", "he", "ll", "hell", "hello", "▁hello", "▁a"}) {
    vocab[token] = id++;
  }
  const json mark = {{"String", "▁"}}, space = {{"String", " "}};
  return {
      {"version", "1.0"},
      {"added_tokens", {Added(0, "<unk>", true), Added(1, "<s>", true), Added(2, "</s>", true)}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", space}, {"content", "▁"}}}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", json::array()},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", mark}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges",
         json::array(
             {{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"▁", "hello"}, {"▁", "a"}})}}}};
}

std::string ModelFile(const SentencePieceModel& model) {
  std::string file;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    std::string bytes;
    PutBytes(1, piece.text, &bytes);
    PutVarint(2 << 3 | 5, &bytes);
    const auto score = std::bit_cast<uint32_t>(piece.score);
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(score >> (8 * i)));
    PutNumber(3, static_cast<uint64_t>(piece.type), &bytes);
    PutBytes(1, bytes, &file);
  }
  std::string trainer, normalizer;
  PutNumber(3, 2, &trainer);
  PutNumber(35, model.byte_fallback ? 1 : 0, &trainer);
  PutBytes(44, model.unknown_surface, &trainer);
  PutBytes(1, "identity", &normalizer);
  PutNumber(3, model.add_dummy_prefix ? 1 : 0, &normalizer);
  PutNumber(4, model.remove_extra_whitespaces ? 1 : 0, &normalizer);
  PutNumber(5, model.escape_whitespaces ? 1 : 0, &normalizer);
  PutBytes(2, trainer, &file);
  PutBytes(3, normalizer, &file);
  return file;
}

SentencePieceModel TinyModel() {
  using Type = SentencePieceModel::Type;
  SentencePieceModel model;
  model.byte_fallback = true;
  model.remove_extra_whitespaces = false;
  model.unknown = 0;
  model.pieces = {{.text = "<unk>", .type = Type::kUnknown},
                  {.text = "<s>", .type = Type::kControl},
                  {.text = "</s>", .type = Type::kControl},
                  {.text = "\n", .type = Type::kUserDefined}};
  for (int byte = 0; byte < 256; ++byte) {
    model.pieces.push_back({.text = ByteName(byte), .type = Type::kByte});
  }
  float score = 0;
  for (const char* text :
       {"he", "ll", "hell", "hello", "▁hello", "▁a", "▁", "h", "e", "l", "o", "a"}) {
    model.pieces.push_back({.text = text, .score = score});
    score -= 1;
  }
  return model;
}

std::unique_ptr<const Tokenizer> FromJson(const json& file) {
  auto tokenizer = ReadTokenizerJson(file.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  EDDY_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.Encode(text, {.add_bos = false});
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>());
}

void ExpectNeverFewer(const Tokenizer& tokenizer, const std::vector<std::string>& parts) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    // Few kinds of parts, so that long runs are there too.
    const size_t kinds = 1 + rng() % parts.size(), first = rng() % parts.size();
    for (auto n = rng() % 60; n > 0; --n) text += parts[(first + rng() % kinds) % parts.size()];
    const auto spans = tokenizer.EncodeSpans(text, {.add_bos = false});
    ASSERT_TRUE(spans.ok()) << spans.status();
    ASSERT_GE(spans->size(), tokenizer.FewestTokens(text)) << text;
  }
}

std::vector<std::string> TokenTexts(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::string> texts;
  for (const int32_t id : EncodePlain(tokenizer, text)) texts.push_back(tokenizer.Bytes(id));
  return texts;
}

std::vector<std::string> Texts(const Pieces& pieces) {
  std::vector<std::string> texts;
  for (const Piece& piece : pieces.list) texts.emplace_back(pieces.View(piece));
  return texts;
}

std::vector<std::string> DecodeInParts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                       bool special_tokens) {
  const std::unique_ptr<TokenDecoder> decoder = tokenizer.NewDecoder(special_tokens);
  std::vector<std::string> parts;
  for (const int32_t id : ids) decoder->Put(id, &parts.emplace_back());
  decoder->Flush(&parts.emplace_back());
  return parts;
}

void ExpectOrdered(const std::vector<TokenSpan>& spans, size_t text_size) {
  uint32_t end = 0;
  for (const TokenSpan& span : spans) {
    EXPECT_GE(span.begin, end);
    EXPECT_GE(span.end, span.begin);
    end = span.end;
  }
  EXPECT_LE(end, text_size);
}

}  // namespace eddy
