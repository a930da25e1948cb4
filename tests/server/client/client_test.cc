// Proves what all commands share: faults of the command line come all at once with status 2, the
// environment is read for common flags alone, and help and version are told.
#include "server/client/client.h"

#include <cstdlib>

#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST_F(ClientTest, TellsEveryFaultOfTheCommandLine) {
  EXPECT_EQ(Run({"generate", "--spans", "--temperature=11", "word", "--prompt=a", "--token_ids=1"}),
            2);
  EXPECT_EQ(err(),
            "eddy: --spans: unknown flag\neddy: --temperature=11: must be 0 to 10\n"
            "eddy: word: is no flag; flags are --name=value\n"
            "eddy: give one of --prompt, --prompt_file, --token_ids\n");
  const struct {
    std::vector<std::string> args;
    const char* fault;
  } cases[] = {
      {{"generate"}, "give one of --prompt"},
      {{"generate", "--prompt=\xFF"}, "is not UTF-8"},
      {{"generate", "--prompt_file=/no/such/file"}, "/no/such/file: No such file"},
      {{"generate", "--token_ids=1,x"}, "\"x\" is no token id"},
      {{"generate", "--token_ids=1,-2"}, "\"-2\" is no token id"},
      {{"score", "--prompt=x", "--next_token_ids=4294967296"}, "is no token id"},
      {{"detokenize"}, "give --token_ids"},
      {{"model"}, "there is no such command"},
      {{"sing"}, "sing: there is no such command"},
      {{"health", "a", "b"}, "health takes one service"},
      {{"generate", "--prompt=x", "--retries=5"}, "must be 0 to 4"},
      {{"generate", "--prompt=x", "--timeout=0"}, "must be 1ms to 24h"},
      {{}, "eddy COMMAND"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Run(c.args), 2);
    EXPECT_THAT(err(), HasSubstr(c.fault));
    EXPECT_THAT(out(), IsEmpty());
  }
  EXPECT_EQ(generation_.streams, 0);
}

TEST_F(ClientTest, ReadsCommonFlagsAloneFromTheEnvironment) {
  setenv("EDDY_MODEL", "from-env", 1);
  setenv("EDDY_REQUEST_ID", "from-env", 1);
  setenv("EDDY_MAX_NEW_TOKENS", "8192", 1);
  EXPECT_EQ(Run({"generate", "--prompt=x", "--request_id=given"}), 0) << err();
  for (const char* name : {"EDDY_MODEL", "EDDY_REQUEST_ID", "EDDY_MAX_NEW_TOKENS"}) unsetenv(name);
  EXPECT_EQ(generation_.generate.model(), "from-env");
  EXPECT_EQ(generation_.generate.request_id(), "given");
  EXPECT_EQ(generation_.generate.stopping().max_new_tokens(), 0);
}

TEST_F(ClientTest, HelpsAndTellsItsVersion) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out(), HasSubstr("eddy COMMAND"));
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_THAT(out(), StartsWith("eddy "));
  EXPECT_EQ(Run({"generate", "--help"}), 0);
  EXPECT_THAT(out(), HasSubstr("--max_new_tokens=0"));
}

}  // namespace
}  // namespace eddy::client
