// The words that server and engine share: values, moved from one to the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/sampling.h"

namespace eddy {

using RequestId = uint64_t;

// A sequence at rest: all that is needed to go on with it. Immutable and shared; lives in host
// memory.
struct Checkpoint {
  uint64_t model_hash = 0;
  int64_t position = 0;                // how many tokens are in the state
  std::vector<int32_t> unfed = {};     // known, but not yet in the state; at least one
  std::vector<std::byte> record = {};  // the persistent part of a flushed record
  std::vector<std::byte> kv = {};  // the used part of its pages; empty for purely recurrent models
};

// What a request wants to know besides its tokens. All off costs nothing.
struct ReportOptions {
  bool logprobs = false;  // of generated tokens
  int top = 0;            // so many likeliest tokens beside each logprob that is reported
  // Report the prompt's own tokens from this index of the prompt on; negative: none. Index 0 of a
  // fresh sequence has no logprob and is never reported: nothing predicts it.
  int first_scored = -1;
  // max_new_tokens == 0 only: log-probabilities of these tokens as the one after the prompt.
  std::vector<int32_t> next_tokens = {};
  // What the layers tell of each reported token, in TokenReport.
  bool uncertainty = false;
  // Figures of the state at the end, in End.
  bool state_stats = false;
};

// What a client asks for, in tokens. Valid by construction: the server checks it before it gets
// here.
struct Request {
  RequestId id = 0;
  int priority = 0;                  // higher is admitted sooner
  std::vector<int32_t> prompt = {};  // may be empty if `start` has a token left to feed
  int max_new_tokens = 0;            // 0: only feed the prompt, to score it or to keep its state
  std::vector<int32_t> eos_tokens = {};   // end it with kEos, from min_new_tokens on
  std::vector<int32_t> stop_tokens = {};  // end it with kStopToken, from min_new_tokens on
  SamplingParams sampling = {};           // min_new_tokens and ending_tokens are in here
  ReportOptions report = {};
  absl::Time arrival = absl::InfinitePast();
  absl::Time deadline = absl::InfiniteFuture();       // passed: it ends with an error
  absl::Time time_limit = absl::InfiniteFuture();     // passed: it ends well, with what there is,
                                                      // even if it waits and that is nothing
  std::shared_ptr<const Checkpoint> start = nullptr;  // null: the model's initial state
  bool keep_state = false;                            // the end brings a checkpoint
};

enum class EndReason { kEos, kStopToken, kLength, kTimeLimit, kCut };
// How far a request had come.
enum class Phase { kQueue, kPrefill, kDecode };

struct Timings {
  absl::Duration queue = absl::ZeroDuration();    // arrival to admission
  absl::Duration prefill = absl::ZeroDuration();  // admission to the first token
  absl::Duration decode = absl::ZeroDuration();   // first to last token
  int prefill_steps = 0;                          // steps that read prompt tokens
  int decode_steps = 0;                           // steps that generated a token
};

// A sequence that ended because its numbers were no longer finite.
struct NotFinite {
  int layer = -1;  // block index; -1: only the logits
  std::string field = {};
  int64_t position = 0;
};

// Figures of one field of one layer's state.
struct FieldStats {
  int layer = 0;  // of the model, from 0
  std::string layer_type = {};
  std::string field = {};
  int64_t elements = 0;
  int64_t nonfinite = 0;  // NaN or infinite; the rest is about the others, 0 if there are none
  float min = 0, max = 0, mean = 0, rms = 0;
};

struct End {
  EndReason reason = EndReason::kCut;
  absl::Status why = {};  // not OK if cut: cancelled, deadline, device lost, data loss
  Phase phase = Phase::kQueue;
  Timings timings = {};
  std::optional<NotFinite> not_finite = {};  // with why = DataLoss
  // If it was asked for and the request was not cut. Also null when the time limit passed while it
  // waited in line: nothing was read, so there is nothing to keep and a session stays as it was.
  std::shared_ptr<const Checkpoint> state = nullptr;
  // One for each state field of each layer, under the same conditions: of the state from which the
  // last token was predicted.
  std::vector<FieldStats> state_stats = {};
};

// What the Kalman layers say of a token: means over these layers (see Readout), but for the least
// precision, which is that of all.
struct KalmanReport {
  float precision = 0, least_precision = 0, deviation = 0;
  float surprise = 0, information = 0, spread = 0;
};

// The same of the delta layers.
struct DeltaReport {
  float residual = 0, contraction = 0, decay = 0;
};

// A token and what the model thought of it.
struct TokenReport {
  int32_t token = 0;
  float logprob = 0;  // under the model's own distribution, natural logarithm
  int32_t rank = 0;
  float entropy = 0;
  std::vector<Candidate> top = {};
  // If they were asked for and the model has such layers: what these did with the token before
  // this one, whose row this one was predicted from.
  std::optional<KalmanReport> kalman = {};
  std::optional<DeltaReport> delta = {};
};

// Something happened to a request. Exactly one event of each request has `end`, and it is the last;
// it may bring a token, too.
struct Event {
  RequestId id = 0;
  std::vector<TokenReport> scored = {};   // next tokens of the prompt, in order
  std::vector<float> next = {};           // log-probabilities of ReportOptions::next_tokens
  std::vector<Candidate> next_top = {};   // and the likeliest `top`, with max_new_tokens == 0
  std::optional<TokenReport> token = {};  // generated
  std::optional<End> end = {};
};

}  // namespace eddy
