// Proves that eddy generate sends what its flags say, and that standard output carries the text
// alone, also before an error, or a line of JSON per message.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST_F(ClientTest, GenerateSendsEveryFlag) {
  EXPECT_EQ(Run({"generate", "--prompt=Once", "--model=tales", "--request_id=r1", "--temperature=0",
                 "--top_p=0.5", "--top_k=7", "--min_p=0.25", "--seed=0", "--max-new-tokens=9",
                 "--stop=[\"\\n\", \"end\"]", "--ignore_eos", "--time_limit=1500ms", "--logprobs=2",
                 "--timings", "--uncertainty", "--priority=-3"}),
            0)
      << err();
  EXPECT_THAT(generation_.generate, EqualsJson(R"({
      "requestId": "r1", "model": "tales", "text": "Once", "priority": -3,
      "sampling": {"temperature": 0, "topP": 0.5, "topK": 7, "minP": 0.25, "seed": 0},
      "stopping": {"maxNewTokens": 9, "stopStrings": ["\n", "end"], "ignoreEos": true,
                   "timeLimit": "1.5s"},
      "response": {"logprobs": true, "topLogprobs": 2, "timings": true, "uncertainty": true}})"));
}

TEST_F(ClientTest, GenerateLeavesUnsetWhatWasNotGiven) {
  EXPECT_EQ(Run({"generate", "--token_ids=[1, 2,3]"}), 0) << err();
  EXPECT_THAT(generation_.generate,
              EqualsJson(R"({"tokenIds": {"ids": [1, 2, 3]}, "sampling": {}, "stopping": {},
                             "response": {}})"));
}

TEST_F(ClientTest, TakesAStopThatIsNoListAsOneText) {
  for (const char* stop : {"[", "[1]", "{\"a\": 1}", "plain", ""}) {
    EXPECT_EQ(Run({"generate", "--prompt=x", "--stop", stop}), 0) << err();
    EXPECT_THAT(generation_.generate.stopping().stop_strings(), ElementsAre(stop));
  }
}

TEST_F(ClientTest, StandardOutputCarriesTheTextAlone) {
  generation_.generated = {
      FromJson<v1::GenerateResponse>(R"({"outputs": [{"text": "Once ", "logprobs": [
          {"tokenId": 5, "token": "T25jZQ==", "logprob": -0.5, "rank": 1,
           "top": [{"tokenId": 6, "logprob": -1.25}]}], "uncertainty": [
           {"entropy": 1.5, "kalmanSpread": 0.25, "deltaResidual": 0}]}]})"),
      FromJson<v1::GenerateResponse>(R"({"outputs": [{"text": "upon", "finishInfo": {
          "reason": "FINISH_REASON_LENGTH", "timings": {"queue": "0.001s", "decodeSteps": 2}}}]})")};
  for (const char* stream : {"--stream", "--nostream"}) {
    EXPECT_EQ(Run({"generate", "--prompt=x", "--logprobs=1", "--timings", stream}), 0);
    EXPECT_EQ(out(), std::string("Once ") + (stream[2] == 'n' ? "" : "upon"));
    EXPECT_THAT(
        err(),
        StartsWith("\"Once\"\t-0.5000\t1\t6 -1.2500\nentropy 1.5\tspread 0.25\tresidual 0\n"));
  }
  EXPECT_EQ(Run({"generate", "--prompt=x"}, /*terminal=*/true), 0);
  EXPECT_EQ(out(), "Once upon\n");
  EXPECT_THAT(err(), HasSubstr("queue 1ms"));
}

TEST_F(ClientTest, WritesOneLineOfJsonPerMessage) {
  generation_.generated = {FromJson<v1::GenerateResponse>(R"({"outputs": [{"text": "a\nb"}]})"),
                           FromJson<v1::GenerateResponse>(R"({"outputs": [{"text": "c"}]})")};
  EXPECT_EQ(Run({"generate", "--prompt=x", "--output=json"}), 0);
  std::istringstream lines(out());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += nlohmann::json::parse(line)["outputs"][0]["text"];
  }
  EXPECT_EQ(text, "a\nbc");
}

TEST_F(ClientTest, KeepsTheTextThatCameBeforeAnError) {
  generation_.generated = {FromJson<v1::GenerateResponse>(R"({"outputs": [{"text": "Once"}]})")};
  generation_.status = {grpc::StatusCode::ABORTED, "too slow"};
  EXPECT_EQ(Run({"generate", "--prompt=x"}), 20);
  EXPECT_EQ(out(), "Once");
  EXPECT_EQ(err(), "eddy: ABORTED: too slow\n");
}

TEST_F(ClientTest, ReportsAnOutputThatCannotBeWritten) {
  generation_.generated = {FromJson<v1::GenerateResponse>(R"({"outputs": [{"text": "Once"}]})")};
  for (const char* stream : {"--stream", "--nostream"}) {
    std::ofstream full("/dev/full");
    std::ostringstream err;
    EXPECT_EQ(RunClient({"generate", "--prompt=x", stream, target_}, full, err, false), 12);
    EXPECT_THAT(err.str(), HasSubstr("standard output cannot be written"));
  }
}

}  // namespace
}  // namespace eddy::client
