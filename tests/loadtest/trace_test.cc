// Proves that traces are read whole and that each fault is told with its file, line and key.
#include "loadtest/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace eddy::loadtest {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<TraceEntry>> Read(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/eddy_trace_test.jsonl";
  std::ofstream(path) << text;
  return ReadTrace(path);
}

TEST(Trace, StartsWithItsFirstEntry) {
  const auto trace = Read(
      "{\"timestamp\": 100.5, \"prompt_tokens\": 3, \"max_new_tokens\": 4}\n\n"
      "{\"timestamp\": 102, \"prompt_tokens\": 5, \"max_new_tokens\": 6, \"other\": null}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2);
  EXPECT_EQ((*trace)[0].at_s, 0);
  EXPECT_EQ((*trace)[0].prompt_tokens, 3);
  EXPECT_EQ((*trace)[1].at_s, 1.5);
  EXPECT_EQ((*trace)[1].max_new_tokens, 6);
}

TEST(Trace, TellsWhatIsWrong) {
  const std::string good = "{\"timestamp\": 1, \"prompt_tokens\": 3, \"max_new_tokens\": 4}\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "no entries"},
      {good + "[1]", ":2: not a JSON object"},
      {good + "{", ":2: not a JSON object"},
      {"{\"prompt_tokens\": 3, \"max_new_tokens\": 4}", ":1: timestamp is not a number"},
      {"{\"timestamp\": 1, \"max_new_tokens\": 4}", ":1: prompt_tokens is missing"},
      {"{\"timestamp\": 1, \"prompt_tokens\": 0, \"max_new_tokens\": 4}",
       "prompt_tokens is 0, it must be a number of 1 to 1000000"},
      {"{\"timestamp\": 1, \"prompt_tokens\": 3, \"max_new_tokens\": -1}", "max_new_tokens is -1"},
      {good + "{\"timestamp\": 0.5, \"prompt_tokens\": 3, \"max_new_tokens\": 4}",
       ":2: timestamp is 0.5, below the 1 of the line before"},
  };
  for (const auto& [text, fault] : cases) {
    EXPECT_THAT(std::string(Read(text).status().message()), HasSubstr(fault)) << text;
  }
  EXPECT_EQ(ReadTrace("/nonexistent/trace").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace eddy::loadtest
