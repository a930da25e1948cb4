#include "server/client/prompt.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/utf8.h"

namespace eddy::client {
namespace {

// More than any server takes; a device that never ends must not fill the memory.
constexpr size_t kFileBytesMax = 256 << 20;

absl::StatusOr<std::string> ReadAll(std::istream& in, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof(buffer)) || in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
    if (text.size() > kFileBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt_file=", path, ": is longer than 256 MiB"));
    }
  }
  if (in.bad()) {
    return absl::InvalidArgumentError(absl::StrCat("--prompt_file=", path, ": cannot be read"));
  }
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (path == "-") return ReadAll(std::cin, path);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt_file=", path, ": ", std::strerror(errno)));
  }
  return ReadAll(file, path);
}

}  // namespace

void PromptFlags::AddTextTo(FlagSet* flags) {
  flags->Add("prompt", &prompt, flag::Text("UTF-8"), "the text");
  flags->Add("prompt_file", &prompt_file, flag::Text("path, - for standard input"),
             "a file that holds the text");
}

void PromptFlags::AddTo(FlagSet* flags) {
  AddTextTo(flags);
  flags->Add("token_ids", &token_ids, flag::Text("ids with commas between them"),
             "the text as tokens");
}

absl::StatusOr<std::vector<uint32_t>> ParseIds(const std::string& flag, const std::string& text) {
  absl::string_view list = absl::StripAsciiWhitespace(text);
  if (absl::ConsumePrefix(&list, "[")) absl::ConsumeSuffix(&list, "]");
  std::vector<uint32_t> ids;
  for (const absl::string_view word :
       absl::StrSplit(list, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", flag, ": \"", word, "\" is no token id; they are numbers with commas between"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<Prompt> ReadPrompt(const PromptFlags& flags, const FlagSet& given) {
  const bool has_ids = given.has("token_ids") && given.given("token_ids");
  if (given.given("prompt") + given.given("prompt_file") + has_ids != 1) {
    return absl::InvalidArgumentError(given.has("token_ids")
                                          ? "give one of --prompt, --prompt_file, --token_ids"
                                          : "give one of --prompt, --prompt_file");
  }
  Prompt prompt;
  if (has_ids) {
    EDDY_ASSIGN_OR_RETURN(prompt.token_ids, ParseIds("token_ids", flags.token_ids));
    return prompt;
  }
  prompt.text = flags.prompt;
  if (given.given("prompt_file")) {
    EDDY_ASSIGN_OR_RETURN(prompt.text, ReadFile(flags.prompt_file));
  }
  if (!IsUtf8(prompt.text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.given("prompt_file") ? "--prompt_file" : "--prompt", ": is not UTF-8"));
  }
  return prompt;
}

}  // namespace eddy::client
