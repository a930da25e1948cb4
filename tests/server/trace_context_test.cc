// Proves what is read of traceparent and tracestate, against a table that follows the grammar of
// W3C Trace Context and against random bytes, and where a call's span comes to stand.
#include "server/trace_context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "server/ids.h"

namespace eddy {
namespace {

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c";
const std::string kSpan = "b7ad6b7169203331";

std::string Parent(const std::string& version, const std::string& flags) {
  return version + "-" + kTrace + "-" + kSpan + "-" + flags;
}

TEST(TraceParent, IsReadWhenItIsRight) {
  const struct {
    std::string text;
    bool sampled;
  } cases[] = {
      {Parent("00", "01"), true},  {Parent("00", "00"), false},
      {Parent("00", "03"), true},  {Parent("00", "fe"), false},
      {Parent("00", "ff"), true},  {Parent("00", "0b"), true},
      {Parent("01", "01"), true},  {Parent("cc", "00-what-is-new"), false},
      {Parent("fe", "01-"), true},
  };
  for (const auto& one : cases) {
    const std::optional<TraceParent> read = ReadTraceParent(one.text);
    ASSERT_TRUE(read.has_value()) << one.text;
    EXPECT_EQ(read->trace_id, kTrace);
    EXPECT_EQ(read->span_id, kSpan);
    EXPECT_EQ(read->sampled, one.sampled) << one.text;
  }
}

TEST(TraceParent, IsNoneWhenItIsWrong) {
  const std::string zeros(32, '0');
  const std::vector<std::string> cases = {
      "",
      "00",
      Parent("00", "0"),
      Parent("00", "01x"),
      Parent("00", "01-"),
      Parent("00", "01-more"),
      Parent("01", "01more"),
      Parent("00", "0A"),
      Parent("00", "0g"),
      Parent("00", " 1"),
      Parent("ff", "01"),
      Parent("0", "01"),
      Parent("0x", "01"),
      Parent("A0", "01"),
      " " + Parent("00", "01"),
      Parent("00", "01") + " ",
      "00-" + zeros + "-" + kSpan + "-01",
      "00-" + kTrace + "-" + zeros.substr(16) + "-01",
      "00-0AF7651916CD43DD8448EB211C80319C-" + kSpan + "-01",
      "00-" + kTrace + "-B7AD6B7169203331-01",
      "00_" + kTrace + "-" + kSpan + "-01",
      "00-" + kTrace + "_" + kSpan + "-01",
      "00-" + kTrace + "-" + kSpan + "_01",
      "00-" + kTrace.substr(1) + "-" + kSpan + "-01",
      "00-" + kTrace + "-" + kSpan + "1-01",
      "00-." + kTrace.substr(1) + "-" + kSpan + "-01",
      "00-" + kTrace + "-" + kSpan.substr(1) + ".-01",
  };
  for (const std::string& text : cases) EXPECT_FALSE(ReadTraceParent(text).has_value()) << text;
}

// Whatever comes, what is taken is what a reader of the grammar would have taken: the fields stand
// where version 00 has them, and each has its alphabet.
TEST(TraceParent, OfRandomBytesHoldsOnlyWhatTheGrammarHas) {
  const uint64_t seed = RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::string alphabet = "0123456789abcdef-ABg \x80\xff";
  int taken = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string text = Parent("00", "01");
    for (uint64_t changes = random() % 4; changes > 0; --changes) {
      text[random() % text.size()] = alphabet[random() % alphabet.size()];
    }
    if (random() % 4 == 0) text.resize(random() % 64, alphabet[random() % alphabet.size()]);
    const std::optional<TraceParent> read = ReadTraceParent(text);
    if (!read.has_value()) continue;
    ++taken;
    EXPECT_EQ(text.substr(3, 32), read->trace_id);
    EXPECT_EQ(text.substr(36, 16), read->span_id);
    EXPECT_EQ((read->trace_id + read->span_id).find_first_not_of("0123456789abcdef"),
              std::string::npos);
  }
  EXPECT_GT(taken, 1000);
}

TEST(TraceState, KeepsItsMembersInOrder) {
  EXPECT_EQ(ReadTraceState(""), "");
  EXPECT_EQ(ReadTraceState("congo=t61rcWkgMzE"), "congo=t61rcWkgMzE");
  EXPECT_EQ(ReadTraceState(" rojo=1 ,\t, ,congo=a b!~\t,"), "rojo=1,congo=a b!~");
  EXPECT_EQ(ReadTraceState("fw529a3039@dt=FfD,0a_-*/@=x"), "fw529a3039@dt=FfD,0a_-*/@=x");
  const std::string longest = std::string(256, 'k') + "=" + std::string(255, 'v');
  EXPECT_EQ(ReadTraceState(longest), longest);
}

TEST(TraceState, IsDroppedAsAWholeWhenAMemberIsWrong) {
  for (const std::string& wrong :
       {std::string("a"), std::string("=1"), std::string("a="), std::string("A=1"),
        std::string("a=1,b"), std::string("a=1=2"), std::string("a b=1"), std::string("a=1,a=2"),
        std::string("_a=1"), std::string("a=\x01"), std::string("a=\xc3\xa4"),
        std::string(257, 'k') + "=1", "k=" + std::string(257, 'v')}) {
    EXPECT_EQ(ReadTraceState(wrong), "") << wrong;
  }
  std::string many;
  for (int i = 0; i < 33; ++i) many += "k" + std::to_string(i) + "=1,";
  EXPECT_EQ(ReadTraceState(many), "");
  EXPECT_NE(ReadTraceState(many.substr(many.find(',') + 1)), "");
}

TEST(TraceState, LosesLongMembersFirstAndThenTheLast) {
  const std::string large = "large=" + std::string(200, 'x');
  std::string state = "first=1," + large;
  for (int i = 0; i < 4; ++i) state += ",k" + std::to_string(i) + "=" + std::string(97, 'v');
  const std::string shortened = ReadTraceState(state);
  EXPECT_EQ(shortened.find("large"), std::string::npos);
  EXPECT_NE(shortened.find("k3="), std::string::npos);
  std::string small;
  for (int i = 10; i < 30; ++i) small += "k" + std::to_string(i) + "=" + std::string(46, 'v') + ",";
  EXPECT_EQ(ReadTraceState(small), small.substr(0, 510 - 1));
}

TEST(TraceState, OfRandomBytesIsBoundedAndStaysWhatItIs) {
  const uint64_t seed = RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::string alphabet = "ab1=,= ,\t_@\x7f\xe4~";
  for (int i = 0; i < 50000; ++i) {
    std::string text(random() % 700, ' ');
    for (char& c : text) c = alphabet[random() % (i % 2 == 0 ? 6 : alphabet.size())];
    const std::string read = ReadTraceState(text);
    ASSERT_LE(read.size(), 512u);
    ASSERT_EQ(ReadTraceState(read), read);
  }
}

TEST(TracePlace, IsUnderTheCallersSpan) {
  const TracePlace place = PlaceInTrace(Parent("00", "01"), "a=1", 0);
  EXPECT_EQ(place.trace_id, kTrace);
  EXPECT_EQ(place.parent_id, kSpan);
  EXPECT_NE(place.span_id, kSpan);
  EXPECT_EQ(place.span_id.size(), 16u);
  EXPECT_EQ(place.state, "a=1");
  EXPECT_TRUE(place.sampled);
}

TEST(TracePlace, TakesTheCallersDecisionWhateverTheRatio) {
  EXPECT_TRUE(PlaceInTrace(Parent("00", "01"), "", 0).sampled);
  EXPECT_FALSE(PlaceInTrace(Parent("00", "00"), "", 1).sampled);
}

TEST(TracePlace, BeginsATraceWhereThereIsNone) {
  for (const std::string& parent : {std::string(), Parent("ff", "01"), Parent("00", "01") + "!"}) {
    const TracePlace place = PlaceInTrace(parent, "a=1", 1);
    EXPECT_TRUE(ReadTraceParent("00-" + place.trace_id + "-" + place.span_id + "-00").has_value());
    EXPECT_NE(place.trace_id, kTrace);
    EXPECT_EQ(place.parent_id, "");
    EXPECT_EQ(place.state, "");
    EXPECT_TRUE(place.sampled);
    EXPECT_FALSE(PlaceInTrace(parent, "", 0).sampled);
  }
}

TEST(TracePlace, IsSampledByTheEndOfItsTraceId) {
  const std::string first(18, '7');
  EXPECT_TRUE(IsSampled(first + "80000000000000", 0.5));
  EXPECT_FALSE(IsSampled(first + "7fffffffffffff", 0.5));
  EXPECT_TRUE(IsSampled(first + "00000000000000", 1));
  EXPECT_FALSE(IsSampled(first + "ffffffffffffff", 0));
  int sampled = 0;
  for (int i = 0; i < 10000; ++i) sampled += PlaceInTrace("", "", 0.1).sampled ? 1 : 0;
  EXPECT_GT(sampled, 800);  // 1000 expected, 30 the standard deviation
  EXPECT_LT(sampled, 1200);
}

}  // namespace
}  // namespace eddy
