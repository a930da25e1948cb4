// What the server has for one client, in plain values: the words between delivery, mailbox and
// replies.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/request.h"
#include "server/errors.h"

namespace eddy {

enum class FinishReason { kEos, kLength, kStopString, kStopToken, kTimeLimit };

// How a sequence ended that ended well.
struct Finish {
  FinishReason reason = FinishReason::kLength;
  int32_t stop_token = -1;                   // kEos and kStopToken
  std::string stop_string = {};              // kStopString
  std::vector<FieldStats> state_stats = {};  // if asked for; never with kStopString
};

// What became of the prompt.
struct PromptFacts {
  int prompt_tokens = 0;
  int truncated_tokens = 0;
  int32_t first_token = -1;
  std::optional<std::string> text = {};  // if asked for
  std::vector<int32_t> ids = {};         // if asked for
};

// Counts and times of one call so far.
struct Tally {
  int prompt_tokens = 0;
  int generated_tokens = 0;  // the one that ended it included
  Timings timings = {};
  std::optional<Phase> phase = {};  // how far it came in the engine; none: it was not taken there
  absl::Duration total = absl::ZeroDuration();  // arrival to now
};

// What is new for one client. Later output can be appended, so that a slow reader gets fewer and
// larger messages.
struct Output {
  int num_tokens = 0;                    // new tokens, those whose text is held back included
  std::string text = {};                 // whole characters, no beginning of a stop string
  std::vector<TokenReport> tokens = {};  // one per new token, if the call wants them
  std::unique_ptr<PromptFacts> prompt = nullptr;  // with the first output only
  std::vector<TokenReport> scored = {};           // the prompt's tokens, with the first output
  std::vector<float> next = {};                   // see Event
  std::vector<Candidate> next_top = {};           // "
  std::optional<Finish> finish = {};              // the last output of a call that ended well
  Tally tally = {};                               // with `finish`

  bool empty() const { return num_tokens == 0 && prompt == nullptr && !finish.has_value(); }
  // About what it takes in memory and grows with the number of tokens.
  int64_t bytes() const;
  // `later` came after this.
  void Append(Output later);
};

// How a call ended.
struct Ending {
  std::optional<Error> error = {};  // none: well
  std::optional<Finish> finish = {};
  Tally tally = {};
};

// Where the output of one call goes.
class Reply {
 public:
  virtual ~Reply() = default;
  // False: more waits for this client than may, all of it was dropped, and the call should be cut.
  virtual bool Put(Output output) = 0;
  // The last call of all: the reply may be gone when this returns.
  virtual void End(Ending ending) = 0;
};

// Watches calls; must not block. Any thread.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // Times in seconds: arrival to first token, and between successive tokens of one sequence.
  virtual void Tokens(const std::vector<double>& first, const std::vector<double>& between) = 0;
};

}  // namespace eddy
