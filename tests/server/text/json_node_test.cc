// Proves that errors name the place, the value and what was expected.
#include "server/text/json_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace eddy {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(JsonNode, NamesThePlaceAndTheValue) {
  const json file = {{"a", {1, {{"b", "text"}}}}};
  const JsonNode node = JsonNode(&file, "")["a"].At(1)["b"];
  EXPECT_EQ(*node.String(), "text");
  EXPECT_EQ(Message(node.Bool().status()), "a[1].b is \"text\"; expected true or false");
}

TEST(JsonNode, IsNullWhereThereIsNothing) {
  const json file = {{"a", 1}};
  EXPECT_TRUE(JsonNode(&file, "")["x"].is_null());
  EXPECT_TRUE(JsonNode(&file, "")["a"]["x"].is_null());
  EXPECT_EQ(*JsonNode(&file, "")["x"].BoolOr(true), true);
}

TEST(JsonNode, ChecksBoundsOfIntegers) {
  const json file = {3, -1, 2.5, 18446744073709551615u, "3"};
  const JsonNode node(&file, "f");
  EXPECT_EQ(*node.At(0).Int(0, 3), 3);
  for (size_t i = 0; i < file.size(); ++i) {
    EXPECT_THAT(Message(node.At(i).Int(0, 2).status()), HasSubstr("from 0 to 2"));
  }
}

TEST(JsonNode, RefusesUnknownKeys) {
  const json file = {{"type", "X"}, {"extra", 1}};
  EXPECT_TRUE(JsonNode(&file, "n").CheckKeys({"type", "extra"}).ok());
  EXPECT_EQ(Message(JsonNode(&file, "n").CheckKeys({"type"})),
            "n.extra is 1; this key is not supported; supported: type");
  EXPECT_FALSE(JsonNode(&file, "n")["type"].CheckKeys({}).ok());
}

TEST(JsonNode, ShowsOnlyTheSizeOfWhatHoldsMore) {
  const json file = {{"a", {1, 2}}};
  EXPECT_EQ(Message(JsonNode(&file, "n")["a"].Bool().status()),
            "n.a is a list of 2; expected true or false");
  EXPECT_EQ(Message(JsonNode(&file, "n").CheckArray()), "n is an object of 1; expected a list");
}

TEST(JsonNode, ShowsLongValuesCut) {
  const json file = std::string(1000, '\n');
  EXPECT_LT(Message(JsonNode(&file, "n").Bool().status()).size(), 150u);
}

}  // namespace
}  // namespace eddy
