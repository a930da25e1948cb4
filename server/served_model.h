// The model that this server serves, and the bounds of its calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "engine/load.h"
#include "server/text/tokenizer.h"

namespace eddy {

// What requests are checked against; each is a flag of the server.
struct RequestLimits {
  int max_prompt_tokens = 131072;
  int max_new_tokens = 8192;
  int default_max_new_tokens = 256;
  int max_logprob_entries = 65536;
  int64_t max_message_bytes = 8 << 20;
  absl::Duration max_request_time = absl::Minutes(10);
};

// Constant once it is served.
struct ServedModel {
  std::string name;
  ModelInfo info = {};
  Capacity capacity = {};
  std::unique_ptr<const Tokenizer> tokenizer = nullptr;  // null: token ids only
  RequestLimits limits = {};
};

}  // namespace eddy
