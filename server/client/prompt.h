// The flags that say what a model reads, and lists as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flags.h"
#include "eddy/v1/generation.pb.h"

namespace eddy::client {

// --prompt, --prompt_file and --token_ids: exactly one of them.
struct PromptFlags {
  std::string prompt;
  std::string prompt_file;
  std::string token_ids;

  void AddTo(FlagSet* flags);
  void AddTextTo(FlagSet* flags);  // without --token_ids
};

struct Prompt {
  std::string text;
  std::optional<std::vector<uint32_t>> token_ids;  // instead of the text
};

// Reads the file, or standard input for "-". InvalidArgument: names the flag and what is wrong.
absl::StatusOr<Prompt> ReadPrompt(const PromptFlags& flags, const FlagSet& given);

// "1,2,3", also with spaces or in brackets. InvalidArgument: names the flag and what is no id.
absl::StatusOr<std::vector<uint32_t>> ParseIds(const std::string& flag, const std::string& text);

// Puts the prompt where a request wants it.
template <typename Request>
void SetPrompt(Prompt prompt, Request* request) {
  if (prompt.token_ids.has_value()) {
    auto* ids = request->mutable_token_ids()->mutable_ids();
    ids->Assign(prompt.token_ids->begin(), prompt.token_ids->end());
  } else {
    request->set_text(std::move(prompt.text));
  }
}

}  // namespace eddy::client
