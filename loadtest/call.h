// One call of a load test: what is planned, and what was seen of it. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace eddy::loadtest {

// Of the monotonic clock, so that no correction of the machine's time looks like latency.
inline int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct PlannedCall {
  double at_s = 0;  // intended send, after the run's start; a closed loop has none and ignores it
  int prompt_tokens = 1;
  int max_new_tokens = 1;
  int cancel_after = -1;     // cancelled here after so many tokens; negative: never
  bool slow_reader = false;  // pauses before each read
  uint64_t seed = 0;         // of the prompt's tokens and of the server's draws
};

// A message that brought tokens.
struct Message {
  uint32_t at_us = 0;  // after the intended send
  uint32_t tokens = 0;
};

// Eight bytes for each message stay until the run was summed up. Written by one thread at a time.
struct CallRecord {
  PlannedCall plan = {};
  int64_t intended_us = 0;  // of NowUs, like the next two
  int64_t sent_us = 0;
  int64_t done_us = 0;
  std::vector<Message> messages = {};
  int code = 0;             // gRPC's
  std::string reason = {};  // google.rpc.ErrorInfo's, empty if there is none
  std::string error = {};
  bool cancelled_here = false;  // as planned; its code is then CANCELLED

  int64_t tokens() const {
    int64_t sum = 0;
    for (const Message& message : messages) sum += message.tokens;
    return sum;
  }
  // Answered in full.
  bool ok() const { return code == 0; }
  // The call's times tell of the server: it was answered in full, and nobody here held it up.
  bool timed() const { return ok() && !plan.slow_reader; }
  double ttft_ms() const { return messages.empty() ? 0 : messages.front().at_us / 1e3; }
  double e2e_ms() const { return static_cast<double>(done_us - intended_us) / 1e3; }
  // Time per token after the first. REQUIRES: tokens() > 1.
  double tpot_ms() const {
    return (messages.back().at_us - messages.front().at_us) / 1e3 /
           static_cast<double>(tokens() - 1);
  }
};

// gRPC's name for a code: "UNAVAILABLE".
const char* CodeName(int code);

}  // namespace eddy::loadtest
