// Proves that flags are read from environment, command line and file in the right order and in
// every spelling, that each bound holds on both sides, and that all faults come at once.
#include "base/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace eddy {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// One flag of every kind.
struct Values {
  int count = 5;
  bool loud = true;
  std::string name = "x";
  std::string color = "red";
  double share = 0.5;
  absl::Duration wait = absl::Seconds(10);
  int64_t room = 1 << 20;
  std::optional<double> heat;
  std::optional<uint64_t> seed;
};

class FlagSetTest : public testing::Test {
 protected:
  FlagSetTest() {
    flags_.Add("a_count", &values_.count, flag::Number(1, 100), "how many");
    flags_.Add("loud", &values_.loud, flag::Bool(), "how loud");
    flags_.Add("name", &values_.name, flag::Text("a name"), "what");
    flags_.Add("color", &values_.color, flag::OneOf({"red", "blue"}), "which");
    flags_.Add("share", &values_.share, flag::Real(0.1, 0.9), "how much");
    flags_.Add("wait", &values_.wait, flag::Time(absl::Seconds(1), absl::InfiniteDuration()),
               "how long");
    flags_.Add("room", &values_.room, flag::Bytes(1 << 10, int64_t{1} << 32), "how big");
    flags_.Add("heat", &values_.heat, flag::Real(0, 2), "how hot");
    flags_.Add("seed", &values_.seed, flag::Unsigned(), "which seed");
  }
  FlagSet::Parsed Parse(const std::vector<std::string>& args) {
    return flags_.Parse(args, "FLAGS_TEST_");
  }
  // Whether the one flag `arg` is taken without a fault.
  bool Takes(const std::string& arg) { return Parse({arg}).faults.empty(); }

  Values values_;
  FlagSet flags_;
};

TEST_F(FlagSetTest, KeepsDefaultsWhenNothingIsGiven) {
  const FlagSet::Parsed parsed = Parse({});
  EXPECT_THAT(parsed.faults, IsEmpty());
  EXPECT_EQ(values_.count, 5);
  EXPECT_FALSE(values_.heat.has_value());
  EXPECT_FALSE(flags_.given("a_count"));
  EXPECT_THAT(flags_.Changed(), IsEmpty());
}

TEST_F(FlagSetTest, TakesEverySpelling) {
  const FlagSet::Parsed parsed =
      Parse({"--a-count=7", "word", "--name", "--odd", "--noloud", "--color=blue", "--wait=1m30s",
             "--room=64KiB", "--heat=0", "--seed=18446744073709551615", "--", "--name=kept"});
  EXPECT_THAT(parsed.faults, IsEmpty());
  EXPECT_THAT(parsed.positional, ElementsAre("word", "--name=kept"));
  EXPECT_EQ(values_.count, 7);
  EXPECT_EQ(values_.name, "--odd");
  EXPECT_FALSE(values_.loud);
  EXPECT_EQ(values_.wait, absl::Seconds(90));
  EXPECT_EQ(values_.room, 65536);
  EXPECT_EQ(values_.heat, 0.0);
  EXPECT_EQ(values_.seed, 18446744073709551615u);
  EXPECT_THAT(flags_.Changed(),
              ElementsAre("a_count=7", "loud=false", "name=--odd", "color=blue", "wait=1m30s",
                          "room=64KiB", "heat=0", "seed=18446744073709551615"));
}

TEST_F(FlagSetTest, ChangesDashesInNamesAlone) {
  Parse({"--name=a-b=c-d"});
  EXPECT_EQ(values_.name, "a-b=c-d");
}

TEST_F(FlagSetTest, KeepsTheLastOfAFlagGivenTwice) {
  EXPECT_THAT(Parse({"--a_count=7", "--a_count=8", "--loud=false", "--loud"}).faults, IsEmpty());
  EXPECT_EQ(values_.count, 8);
  EXPECT_TRUE(values_.loud);
}

TEST_F(FlagSetTest, HoldsEachBoundOnBothSides) {
  for (const char* good :
       {"--a_count=1", "--a_count=100", "--share=0.1", "--share=0.9", "--wait=1s", "--wait=inf",
        "--room=1024", "--room=4GiB", "--room=1KiB", "--heat=2", "--seed=0", "--loud=no"}) {
    EXPECT_TRUE(Takes(good)) << good;
  }
  for (const char* bad : {"--a_count=0",
                          "--a_count=101",
                          "--a_count=",
                          "--a_count=1.5",
                          "--a_count=1x",
                          "--a_count=99999999999999999999",
                          "--share=0.09",
                          "--share=0.91",
                          "--share=nan",
                          "--share=inf",
                          "--wait=999ms",
                          "--wait=10",
                          "--wait=-1s",
                          "--wait=",
                          "--room=1023",
                          "--room=5GiB",
                          "--room=1TiB",
                          "--room=KiB",
                          "--room=9223372036854775807GiB",
                          "--heat=-1",
                          "--seed=-1",
                          "--seed=18446744073709551616",
                          "--color=green",
                          "--loud=perhaps"}) {
    EXPECT_FALSE(Takes(bad)) << bad;
  }
}

TEST_F(FlagSetTest, LeavesAValueAloneThatItRefuses) {
  Parse({"--a_count=7", "--a_count=1000"});
  EXPECT_EQ(values_.count, 7);
}

TEST_F(FlagSetTest, TellsAllFaultsAtOnce) {
  EXPECT_THAT(
      Parse({"--a_count=0", "--what=1", "--nothing", "--noname", "--color=green", "--room"}).faults,
      ElementsAre("--a_count=0: must be 1 to 100", "--what=1: unknown flag",
                  "--nothing: unknown flag", "--noname: unknown flag",
                  "--color=green: must be one of red, blue", "--room: needs a value"));
}

TEST_F(FlagSetTest, ReadsTheEnvironmentFirst) {
  setenv("FLAGS_TEST_A_COUNT", "20", 1);
  setenv("FLAGS_TEST_NAME", "env", 1);
  setenv("FLAGS_TEST_SHARE", "7", 1);
  const FlagSet::Parsed parsed = Parse({"--name=args"});
  for (const char* name : {"FLAGS_TEST_A_COUNT", "FLAGS_TEST_NAME", "FLAGS_TEST_SHARE"}) {
    unsetenv(name);
  }
  EXPECT_EQ(values_.count, 20);
  EXPECT_EQ(values_.name, "args");
  EXPECT_THAT(parsed.faults, ElementsAre("FLAGS_TEST_SHARE=7: must be 0.1 to 0.9"));
}

TEST_F(FlagSetTest, ReadsAFileAtItsPlaceOnTheCommandLine) {
  const std::string path = testing::TempDir() + "/flags_test.flags";
  std::ofstream(path)
      << "# a comment\n\n  --a_count=30\n--name=file\n--loud=7\nword\n--flagfile=x\n";
  const FlagSet::Parsed parsed = Parse(
      {"--name=before", "--a_count=2", "--flagfile", path, "--a_count=3", "--flagfile=/nowhere"});
  EXPECT_EQ(values_.name, "file");
  EXPECT_EQ(values_.count, 3);
  EXPECT_THAT(parsed.faults, ElementsAre(path + ":5: --loud=7: must be true or false",
                                         path + ":6: word: must be --name=value",
                                         path + ":7: --flagfile=x: unknown flag",
                                         "--flagfile=/nowhere: cannot be read"));
}

TEST_F(FlagSetTest, FindsTheWordsThatAreNoFlagsValues) {
  EXPECT_THAT(flags_.Words({"--name", "a", "--loud", "go", "b"}), ElementsAre("go", "b"));
  EXPECT_THAT(flags_.Words({"--unknown=3", "go", "--flagfile", "f"}), ElementsAre("go"));
  EXPECT_THAT(flags_.Words({"--unknown", "go"}), ElementsAre("go"));
  EXPECT_THAT(flags_.Words({"--name", "a"}), IsEmpty());
  EXPECT_THAT(flags_.Words({"--", "--go"}), ElementsAre("--go"));
}

TEST_F(FlagSetTest, LeavesTheEnvironmentAloneWithoutAPrefix) {
  setenv("A_COUNT", "20", 1);
  flags_.Parse({}, "");
  unsetenv("A_COUNT");
  EXPECT_EQ(values_.count, 5);
}

TEST_F(FlagSetTest, HelpNamesEveryFlagWithDefaultAndRange) {
  const std::string help = flags_.Help();
  EXPECT_THAT(help, HasSubstr("--a_count=5  (1 to 100)\n      how many\n"));
  EXPECT_THAT(help, HasSubstr("--room=1MiB  (1KiB to 4GiB)"));
  EXPECT_THAT(help, HasSubstr("--wait=10s  (1s to inf)"));
  EXPECT_TRUE(Parse({"--help"}).help);
  EXPECT_TRUE(Parse({"--version"}).version);
}

TEST(FormatBytes, UsesTheLargestUnitWithoutRest) {
  EXPECT_EQ(FormatBytes(0), "0");
  EXPECT_EQ(FormatBytes(1536), "1536");
  EXPECT_EQ(FormatBytes(8 << 20), "8MiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 30), "3GiB");
}

TEST(TimeFlag, IsWrittenAsPeopleWriteIt) {
  FlagSet flags;
  absl::Duration wait = absl::ZeroDuration();
  flags.Add("wait", &wait, flag::Time(absl::ZeroDuration(), absl::Hours(24)), "");
  for (const char* text : {"10m", "1h", "1h30m", "90ms", "20s", "1h5s", "24h"}) {
    flags.Parse({std::string("--wait=") + text}, "FLAGS_TEST_");
    EXPECT_THAT(flags.Changed(), ElementsAre(std::string("wait=") + text));
  }
}

}  // namespace
}  // namespace eddy
