// From what the engine made to the messages that clients get.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eddy/v1/generation.pb.h"
#include "server/output.h"
#include "server/served_model.h"

namespace eddy {

// What a call wants in its answer, beside text.
struct ResponseShape {
  const ServedModel* model = nullptr;
  std::string request_id = {};
  uint64_t seed = 0;
  bool token_ids = false;
  bool logprobs = false;
  bool uncertainty = false;
  bool timings = false;
  // The prompt's tokens are reported from this one on; negative: not at all. Token 0 has no
  // log-probability, since nothing predicts it.
  int first_scored = -1;
  std::vector<int32_t> next_tokens = {};  // Score
};

v1::GenerateResponse ToGenerateResponse(const Output& output, const ResponseShape& shape);
// `output` is all there is of the call.
v1::ScoreResponse ToScoreResponse(const Output& output, const ResponseShape& shape);

}  // namespace eddy
