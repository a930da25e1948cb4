// Proves what the tables of model_config_test.cc take for granted: a reader gives what is there, a
// value within its rule for what is not or is wrong, and keeps the first fault of the whole file;
// and that the digest is the standard one.
#include "engine/key_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/json_text.h"
#include "engine/sha256.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

TEST(KeyReader, GivesWhatIsThere) {
  const auto json = nlohmann::json::parse(
      R"({"i": -3, "r": 1, "f": true, "w": "b", "t": "text", "n": null, "ids": [4, 5], "id": 6,
          "o": {"x": 1}, "l": [{"y": 2}, {"y": 3}], "fuse_a": 1, "other": 2})");
  KeyReader keys("file", json);
  EXPECT_EQ(keys.Int("i", {.min = -3, .max = 3}), -3);
  EXPECT_EQ(keys.Real("r", {.min = 0, .max = 2}), 1.0);
  EXPECT_TRUE(keys.Flag("f", std::nullopt));
  EXPECT_EQ(keys.Word("w", {"a", "b"}), "b");
  EXPECT_EQ(keys.Text("t"), "text");
  EXPECT_EQ(keys.IntOrNull("n", {.min = 0, .max = 1, .absent = 1}), std::nullopt);
  EXPECT_EQ(keys.RealOrNull("absent", {.min = 0, .max = 1, .absent = 0.5}), 0.5);
  EXPECT_EQ(keys.Ints("ids", {.min = 0, .max = 9}), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(keys.Ints("id", {.min = 0, .max = 9}), std::vector<int64_t>{6});
  EXPECT_EQ(keys.Int("absent", {.min = 0, .max = 9, .absent = 7}), 7);
  EXPECT_TRUE(keys.Has("t"));
  EXPECT_FALSE(keys.Has("n"));
  KeyReader object = keys.Object("o");
  EXPECT_EQ(object.Int("x", {.min = 0, .max = 9}), 1);
  object.End();
  std::vector<KeyReader> list = keys.Objects("l", 2);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1].Int("y", {.min = 0, .max = 9}), 3);
  keys.IgnorePrefix("fuse_");
  keys.Ignore({"other"});
  keys.End();
  EXPECT_TRUE(keys.Status().ok()) << keys.Status();
}

TEST(KeyReader, GivesNumbersOrWordsAndRanges) {
  const auto json = nlohmann::json::parse(R"({"word": "all", "number": 3, "range": [1, 2.5],
      "open": [0.5, null], "wrong": [2, 1]})");
  KeyReader keys("file", json);
  const IntRule rule = {.min = 1, .max = 9};
  using Either = std::variant<int64_t, std::string>;
  EXPECT_EQ(keys.IntOrWord("word", rule, {"all", "none"}, "none"), Either("all"));
  EXPECT_EQ(keys.IntOrWord("number", rule, {"all", "none"}, "none"), Either(int64_t{3}));
  EXPECT_EQ(keys.IntOrWord("absent", rule, {"all", "none"}, "none"), Either("none"));
  const Interval range = keys.Range("range", {.min = 0, .max = 9}, {});
  EXPECT_EQ(range.min, 1);
  EXPECT_EQ(range.max, 2.5);
  const Interval open = keys.Range("open", {.min = 0, .max = 9}, {.max = 4});
  EXPECT_EQ(open.min, 0.5);
  EXPECT_EQ(open.max, std::nullopt);
  const Interval absent = keys.Range("absent", {.min = 0, .max = 9}, {.min = 2, .max = 4});
  EXPECT_EQ(absent.min, 2);
  EXPECT_EQ(absent.max, 4);
  EXPECT_TRUE(keys.Status().ok()) << keys.Status();
  EXPECT_EQ(keys.Range("wrong", {.min = 0, .max = 9}, {.min = 2}).min, 2);
  EXPECT_EQ(keys.Status().message(),
            "file: wrong is [2,1], the second number must not be below the first");
}

TEST(KeyReader, KeepsTheFirstFaultAndGoesOnWithGoodValues) {
  const auto json = nlohmann::json::parse(R"({"o": {"a": 99}, "b": "x"})");
  KeyReader keys("file", json);
  KeyReader object = keys.Object("o");
  EXPECT_EQ(object.Int("a", {.min = 5, .max = 9}), 5);
  EXPECT_EQ(keys.Real("b", {.min = 1, .max = 2}), 1);
  EXPECT_EQ(keys.Word("b", {"first", "second"}), "first");
  EXPECT_TRUE(keys.Objects("missing", 3).empty());
  EXPECT_EQ(keys.Object("missing").Int("x", {.min = 3, .max = 9}), 3);
  keys.End();
  EXPECT_EQ(std::string(keys.Status().message()),
            "file: o.a is 99, must be a whole number from 5 to 9");
}

TEST(KeyReader, CutsLongValuesInItsMessages) {
  const nlohmann::json json = {{"k", std::string(5000, 'x')}, {std::string(5000, 'y'), 1}};
  KeyReader value("file", json);
  value.Int("k", {.min = 0, .max = 1});
  EXPECT_LT(value.Status().message().size(), 200u);
  KeyReader key("file", json);
  key.Text("k");
  key.End();
  EXPECT_THAT(std::string(key.Status().message()), HasSubstr("unknown key yyy"));
  EXPECT_LT(key.Status().message().size(), 200u);
}

TEST(Sha256, IsTheStandardOne) {
  // FIPS 180-2, appendix B.1.
  Sha256 hash;
  hash.Add(std::as_bytes(std::span("abc", 3)));
  const Sha256::Digest digest = hash.Finish();
  std::string hex;
  for (uint8_t byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  EXPECT_EQ(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, TellsWhereOneTextEndsAndTheNextBegins) {
  const auto digest = [](const char* a, const char* b) {
    Sha256 hash;
    hash.AddText(a);
    hash.AddText(b);
    return hash.Finish();
  };
  EXPECT_NE(digest("ab", "c"), digest("a", "bc"));
}

}  // namespace
}  // namespace eddy
