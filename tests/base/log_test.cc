// Proves that whatever a log line is given, it stays one line of valid JSON.
#include "base/log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

namespace eddy {
namespace {

TEST(JsonQuote, GivesBackOrdinaryText) {
  EXPECT_EQ(nlohmann::json::parse(JsonQuote("a \"b\"\\\n\tü€😀")), "a \"b\"\\\n\tü€😀");
}

TEST(JsonQuote, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(nlohmann::json::parse(JsonQuote("a\xC3(\xED\xA0\x80")), "a\uFFFD(\uFFFD\uFFFD\uFFFD");
}

TEST(JsonQuote, IsValidJsonOnOneLineForAnyBytes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  for (int i = 0; i < 2000; ++i) {
    std::string text(rng() % 40, ' ');
    for (char& c : text) c = static_cast<char>(rng());
    const std::string quoted = JsonQuote(text);
    EXPECT_TRUE(nlohmann::json::accept(quoted)) << quoted;
    EXPECT_EQ(quoted.find('\n'), std::string::npos);
  }
}

TEST(LogField, WritesNumbersAsNumbersAndTheRestAsText) {
  EXPECT_EQ(LogField("a", 3).json(), "3");
  EXPECT_EQ(LogField("a", true).json(), "true");
  EXPECT_EQ(LogField("a", 0.5).json(), "0.5");
  EXPECT_EQ(LogField("a", std::nan("")).json(), "\"nan\"");
  EXPECT_EQ(LogField("a", "x").json(), "\"x\"");
}

}  // namespace
}  // namespace eddy
