// Proves that a prompt comes from a text, a file or ids, and that lists of ids are read as people
// write them.
#include "server/client/prompt.h"

#include <fstream>

#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

using testing::HasSubstr;

TEST_F(ClientTest, ReadsThePromptFromAFile) {
  const std::string path = testing::TempDir() + "/client_test_prompt";
  std::ofstream(path) << "two\nlines\n";
  EXPECT_EQ(Run({"generate", "--prompt_file", path}), 0) << err();
  EXPECT_EQ(generation_.generate.text(), "two\nlines\n");
}

TEST(ParseIds, ReadsListsAsPeopleWriteThem) {
  using Ids = std::vector<uint32_t>;
  for (const char* text : {"1,2,3", " 1, 2,3\n", "[1,2,3]", "1 2 3", "[1, 2, 3]\n"}) {
    EXPECT_EQ(*ParseIds("token_ids", text), (Ids{1, 2, 3})) << text;
  }
  EXPECT_EQ(*ParseIds("token_ids", "4294967295"), Ids{4294967295});
  for (const char* empty : {"", "[]", " "}) EXPECT_EQ(*ParseIds("token_ids", empty), Ids{});
  for (const char* bad : {"1;2", "-1", "4294967296", "1.5", "[1,[2]]", "a"}) {
    const absl::Status status = ParseIds("token_ids", bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--token_ids: ")) << bad;
  }
}

}  // namespace
}  // namespace eddy::client
