// One call to the engine: what was asked for, and how its events become output.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/output.h"
#include "server/text/stop_matcher.h"
#include "server/text/tokenizer.h"

namespace eddy {

// A call that was checked but for what only its prompt's tokens can tell. Made by convert_*.h.
struct CallPlan {
  Request request = {};  // complete but for `id`, and for `prompt` if there is text
  std::optional<std::string> text = {};
  EncodeOptions encode = {};
  int truncate_to = 0;           // keep only the last so many tokens of the prompt; 0: all
  bool client_deadline = false;  // request.deadline is the client's, not max_request_time's

  bool wants_text = false;  // decode what is generated
  bool special_tokens = false;
  std::vector<std::string> stop_strings = {};
  bool include_stop_string = false;
  bool wants_tokens = false;  // ids, logprobs or uncertainty of generated tokens
  bool wants_prompt_text = false;
  bool wants_prompt_ids = false;
};

// Turns the events of one request into output: decodes, looks for stop strings, counts. One thread
// at a time. The tokenizer outlives it.
class Call {
 public:
  // `facts` goes out with the first output. `tokenizer` may be null if the plan wants no text.
  Call(const CallPlan& plan, PromptFacts facts, const Tokenizer* tokenizer);

  // What `event` brings for the client; its `end` is not looked at.
  Output Take(Event* event);
  // A stop string was found: the answer is complete, and what follows is dropped.
  bool stopped() const { return stopped_; }
  // The last output of a call that ended well.
  Output Close(const End& end, absl::Time now);
  // How it stands, also for a call that was cut.
  Tally TallyAt(const End& end, absl::Time now) const;

  int generated() const { return generated_; }
  absl::Time arrival() const { return arrival_; }

 private:
  void TakeText(int32_t token, std::string* text);
  void PutText(const std::string& piece, std::string* text);
  bool Ends(int32_t token) const;
  Output WithPrompt(Output output);

  const absl::Time arrival_;
  const bool wants_tokens_;
  const int min_new_tokens_;
  const int prompt_tokens_;
  const std::vector<std::string> stop_strings_;
  const std::vector<int32_t> ending_tokens_;
  std::unique_ptr<TokenDecoder> decoder_;  // null: no text is wanted
  std::optional<StopMatcher> matcher_;     // empty: no stop strings
  std::unique_ptr<PromptFacts> facts_;     // until the first output
  std::vector<TokenReport> scored_;        // "
  std::vector<float> next_;                // "
  std::vector<Candidate> next_top_;        // "
  int generated_ = 0;
  int32_t last_token_ = -1;
  bool stopped_ = false;
};

}  // namespace eddy
