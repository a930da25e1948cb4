// Proves that each component of a tokenizer.json is read into the steps it stands for, and that
// unknown types, keys and values are refused with their place.
#include "server/text/json_components.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/text/pieces.h"
#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string Normal(const json& component, const std::string& text) {
  const auto steps = ReadNormalizer(JsonNode(&component, "normalizer"));
  if (!steps.ok()) return std::string(steps.status().message());
  Pieces pieces(text);
  EXPECT_TRUE(Normalize(*steps, &pieces).ok());
  return pieces.text;
}

std::vector<std::string> Cut(const json& component, const std::string& text) {
  const auto steps = ReadPreTokenizer(JsonNode(&component, "pre_tokenizer"));
  if (!steps.ok()) return {std::string(steps.status().message())};
  Pieces pieces(text);
  EXPECT_TRUE(PreTokenize(*steps, &pieces).ok());
  return Texts(pieces);
}

std::string Decoded(const json& component, const std::vector<std::string>& tokens) {
  const auto steps = ReadDecoder(JsonNode(&component, "decoder"));
  if (!steps.ok()) return std::string(steps.status().message());
  std::string text;
  DecodeChain chain(*steps, &text);
  for (const std::string& token : tokens) chain.Put(token);
  chain.Flush();
  return text;
}

TEST(JsonComponents, ReadsNormalizers) {
  EXPECT_EQ(Normal(nullptr, "A"), "A");
  EXPECT_EQ(Normal({{"type", "NFKC"}}, "\uFB01"), "fi");
  EXPECT_EQ(Normal({{"type", "NFD"}}, "\u00e9"), "e\u0301");
  const json sequence = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Lowercase"}},
        {{"type", "Replace"}, {"pattern", {{"Regex", "\\s+"}}}, {"content", "_"}},
        {{"type", "Prepend"}, {"prepend", ">"}}}}};
  EXPECT_EQ(Normal(sequence, "A  B"), ">a_b");
  EXPECT_EQ(Normal({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}, " a "), "a ");
}

TEST(JsonComponents, ReadsPreTokenizers) {
  EXPECT_THAT(
      Cut({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}, "it's 1"),
      ElementsAre("\u0120it", "'s", "\u01201"));
  EXPECT_THAT(
      Cut({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}, "a b"),
      ElementsAre("a\u0120b"));
  EXPECT_THAT(Cut({{"type", "Digits"}, {"individual_digits", true}}, "a12"),
              ElementsAre("a", "1", "2"));
  EXPECT_THAT(Cut({{"type", "Digits"}, {"individual_digits", false}}, "a12"),
              ElementsAre("a", "12"));
  EXPECT_THAT(Cut({{"type", "Whitespace"}}, "a\u200Db, c"), ElementsAre("a\u200Db", ",", "c"));
  EXPECT_THAT(Cut({{"type", "WhitespaceSplit"}}, "a\u0085b, c"), ElementsAre("a", "b,", "c"));
  EXPECT_THAT(Cut({{"type", "Punctuation"}}, "a,$\u3002b"),
              ElementsAre("a", ",", "$", "\u3002", "b"));
  EXPECT_THAT(Cut({{"type", "Punctuation"}, {"behavior", "Contiguous"}}, "a,$b"),
              ElementsAre("a", ",$", "b"));
  EXPECT_THAT(Cut({{"type", "CharDelimiterSplit"}, {"delimiter", ","}}, "a,b"),
              ElementsAre("a", "b"));
  EXPECT_THAT(Cut({{"type", "Metaspace"}, {"replacement", "_"}}, "a b"), ElementsAre("_a", "_b"));
  EXPECT_THAT(Cut({{"type", "Metaspace"},
                   {"replacement", "_"},
                   {"prepend_scheme", "never"},
                   {"split", false}},
                  "a b"),
              ElementsAre("a_b"));
  EXPECT_THAT(Cut({{"type", "Split"},
                   {"pattern", {{"Regex", "\\d{1,2}"}}},
                   {"behavior", "Isolated"},
                   {"invert", false}},
                  "a123"),
              ElementsAre("a", "12", "3"));
}

TEST(JsonComponents, ReadsDecoders) {
  EXPECT_EQ(Decoded(nullptr, {"a", "b"}), "a b");
  EXPECT_EQ(Decoded({{"type", "ByteLevel"}}, {"a", "\u0120b"}), "a b");
  EXPECT_EQ(Decoded({{"type", "Metaspace"}, {"replacement", "_"}}, {"_a", "_b"}), "a b");
  EXPECT_EQ(Decoded({{"type", "Sequence"},
                     {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}},
                    {"<0x41>", "b"}),
            "Ab");
}

TEST(JsonComponents, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Normal({{"type", "Precompiled"}, {"precompiled_charsmap", ""}}, ""),
              HasSubstr("normalizer.type is \"Precompiled\"; supported: "));
  EXPECT_THAT(Normal({{"type", "NFC"}, {"extra", 1}}, ""), HasSubstr("normalizer.extra is 1"));
  EXPECT_THAT(Normal({{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}, ""),
              HasSubstr("not empty"));
  EXPECT_THAT(Cut({{"type", "Sequence"}, {"pretokenizers", {{{"type", "UnicodeScripts"}}}}}, "")[0],
              HasSubstr("pre_tokenizer.pretokenizers[0].type is \"UnicodeScripts\""));
  EXPECT_THAT(Cut({{"type", "Split"},
                   {"pattern", {{"Regex", "(a)\\1"}}},
                   {"behavior", "Isolated"},
                   {"invert", false}},
                  "")[0],
              HasSubstr("pre_tokenizer.pattern.Regex"));
  EXPECT_THAT(Cut({{"type", "Split"},
                   {"pattern", {{"String", "a"}}},
                   {"behavior", "Dropped"},
                   {"invert", false}},
                  "")[0],
              HasSubstr("pre_tokenizer.behavior is \"Dropped\""));
  EXPECT_THAT(Cut({{"type", "Metaspace"}, {"replacement", "__"}}, "")[0],
              HasSubstr("one character"));
  EXPECT_THAT(
      Cut({{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}}, "")[0],
      HasSubstr("contradicts"));
  EXPECT_THAT(Decoded({{"type", "CTC"}}, {}), HasSubstr("decoder.type is \"CTC\""));
  EXPECT_THAT(Decoded({{"type", "Sequence"},
                       {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}},
                      {}),
              HasSubstr("behind Fuse"));
  EXPECT_THAT(Decoded("ByteLevel", {}), HasSubstr("decoder.type"));
}

TEST(JsonComponents, RefusesEndlessNesting) {
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 100; ++i) {
    nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  }
  EXPECT_THAT(Normal(nested, ""), HasSubstr("nested"));
}

}  // namespace
}  // namespace eddy
