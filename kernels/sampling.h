// From a row of logits to a token, or to the log-probability of a given one: the words, shared by
// the engine and every device.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace eddy {

// How the next token of one sequence is drawn. The order of the steps, whatever the device:
//  1 the row is checked for NaN and infinity;
//  2 its log-softmax gives logprob, rank, top and entropy: always the model's own distribution;
//  3 logit_bias; allowed, banned; below min_new_tokens the ending tokens are barred;
//  4 repetition, then frequency and presence penalty;
//  5 temperature;  6 top_k, top_p, min_p, typical_p, each on what the one before left;
//  7 one uniform number, Philox4x32-10 with key = seed and counter = position of the new token in
//    the whole sequence, mapped through the cumulative distribution in order of token id.
// Temperature 0 takes the greatest logit after 4, the lowest id on a tie. So a draw depends on the
// sequence alone, never on batch, slot, chunking or server.
struct SamplingParams {
  float temperature = 1.0f;
  int32_t top_k = 0;  // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  uint64_t seed = 0;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  std::vector<int32_t> allowed = {};  // empty: all
  std::vector<int32_t> banned = {};
  int32_t min_new_tokens = 0;
  std::vector<int32_t> ending_tokens = {};  // EOS and stop tokens, barred below min_new_tokens
};

struct Candidate {
  int32_t token = 0;
  float logprob = 0;
};

// The most that one row may ask for in its lists.
inline constexpr int kMostTop = 256, kMostAlso = 4096;

// What to do with one row of logits. Everything pointed to stays valid until Ends::Collect.
struct SampleRow {
  const SamplingParams* params = nullptr;  // null: `target` is given
  int32_t target = -1;                     // the token to report on; -1: draw one by `params`
  int64_t position = 0;                    // of the new token in the whole sequence, from 0
  std::span<const int32_t> past = {};      // the tokens before it
  int32_t generated = 0;                   // how many at the end of `past` this call generated
  int32_t top = 0;  // how many of the likeliest tokens to report; kMostTop at most
  std::span<const int32_t> also = {};  // further tokens whose log-probability is wanted; kMostAlso
  bool measured = true;                // false: nobody asks for logprob, rank and entropy
};

// What became of it. Where `measured` is false, logprob, rank and entropy mean nothing. The lists
// are resized by the device (host memory, bounded by the request).
struct SampleResult {
  int32_t token = -1;  // stays -1 if `params` bar every token; then only top, also, entropy hold
  float logprob = 0;
  int32_t rank = 0;    // 1 is the likeliest; equals count from the lowest id
  float entropy = 0;   // nats
  bool finite = true;  // false: the row held NaN or infinity, and nothing else here means anything
  std::vector<Candidate> top = {};  // likeliest first, lowest id first on a tie
  std::vector<float> also = {};     // log-probabilities, in the order of SampleRow::also
};

}  // namespace eddy
