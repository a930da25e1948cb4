// Proves that a file is read whole or refused with the key and the value at fault.
#include "server/text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// The error for a tiny file that was changed.
std::string Refusal(const std::function<void(json*)>& change) {
  json file = TinySpaceMarkJson();
  change(&file);
  const auto tokenizer = ReadTokenizerJson(file.dump());
  return tokenizer.ok() ? "accepted" : std::string(tokenizer.status().message());
}

TEST(TokenizerJson, RefusesUnknownKeysAndTypes) {
  EXPECT_THAT(Refusal([](json* f) { (*f)["extra"] = 1; }), HasSubstr("extra is 1"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["version"] = "2.0"; }), HasSubstr("version is \"2.0\""));
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"]["type"] = "Unigram"; }),
              HasSubstr("model.type is \"Unigram\"; supported: BPE"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"]["dropout"] = 0.1; }), HasSubstr("model.dropout"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"]["end_of_word_suffix"] = "</w>"; }),
              HasSubstr("model.end_of_word_suffix is \"</w>\""));
  EXPECT_THAT(Refusal([](json* f) {
                (*f)["post_processor"] = {{"type", "BertProcessing"}};
              }),
              HasSubstr("post_processor.type"));
  EXPECT_EQ(ReadTokenizerJson("{").status().message(), "the file is not valid JSON");
  EXPECT_FALSE(ReadTokenizerJson("[]").ok());
}

TEST(TokenizerJson, RefusesABrokenVocabulary) {
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"]["vocab"]["x"] = -1; }),
              HasSubstr("model.vocab.x is -1"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"]["vocab"]["x"] = 3; }), HasSubstr("has this id"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"]["vocab"]["x"] = 1 << 24; }),
              HasSubstr("vocab.x"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"]["vocab"][""] = 400; }), HasSubstr("no text"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"]["unk_token"] = "none"; }),
              HasSubstr("unk_token"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["model"].erase("vocab"); }), HasSubstr("model.vocab"));
}

TEST(TokenizerJson, RefusesBrokenMerges) {
  for (const json& merge : {json("ab"), json("a b c"), json("a zz"), json(1), json({"a"}),
                            json({"a", 1}), json({"a", "e"})}) {
    EXPECT_THAT(Refusal([&](json* f) { (*f)["model"]["merges"].push_back(merge); }),
                HasSubstr("model.merges[6]"));
  }
}

TEST(TokenizerJson, RefusesBrokenAddedTokens) {
  const auto first = [](json* f) -> json& { return (*f)["added_tokens"][0]; };
  EXPECT_THAT(Refusal([&](json* f) { first(f)["id"] = 7; }), HasSubstr("added_tokens[0].id is 7"));
  EXPECT_THAT(Refusal([&](json* f) { first(f)["content"] = "new"; }), HasSubstr("has this id"));
  EXPECT_THAT(Refusal([&](json* f) { first(f)["content"] = ""; }),
              HasSubstr("added_tokens[0].content"));
  EXPECT_THAT(Refusal([&](json* f) { first(f).erase("lstrip"); }),
              HasSubstr("added_tokens[0].lstrip"));
}

TEST(TokenizerJson, RefusesATemplateWithUnknownTokens) {
  EXPECT_THAT(
      Refusal([](json* f) { (*f)["post_processor"]["special_tokens"]["<s>"]["ids"] = {999}; }),
      HasSubstr("no token has this id"));
  EXPECT_THAT(Refusal([](json* f) { (*f)["post_processor"]["single"] = json::array(); }),
              HasSubstr("post_processor.single"));
}

TEST(TokenizerJson, ReadsMergesOfBothForms) {
  json file = TinyByteLevelJson();
  file["model"]["merges"] = json::array({"#version: 0.2", json({"h", "e"}), "l l"});
  EXPECT_THAT(TokenTexts(*FromJson(file), "hell"), ElementsAre("he", "ll"));
}

TEST(TokenizerJson, TakesHolesInTheVocabulary) {
  json file = TinyByteLevelJson();
  file["model"]["vocab"].erase("\u00c1");  // C1 is in no valid UTF-8
  file["added_tokens"][0]["id"] = 1000;
  const auto tokenizer = FromJson(file);
  EXPECT_EQ(tokenizer->vocab_size(), 1001);
  EXPECT_THAT(EncodePlain(*tokenizer, "a<|end|>"), ElementsAre('a', 1000));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{500, 1000}, true), "<|end|>");
}

TEST(TokenizerJson, SeeksNormalizedTokensInNormalizedText) {
  json file = TinyByteLevelJson();
  file["normalizer"] = {{"type", "Lowercase"}};
  file["added_tokens"][0]["normalized"] = true;
  file["added_tokens"][0]["content"] = "<END>";
  const auto tokenizer = FromJson(file);
  EXPECT_THAT(EncodePlain(*tokenizer, "<end><END>"), ElementsAre(261, 261));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{261}, true), "<END>");
}

}  // namespace
}  // namespace eddy
