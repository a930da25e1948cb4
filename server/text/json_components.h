// Reads the components of a tokenizer.json file: normaliser, pre-tokenizer, decoder. What is not
// known is refused with its place, its value and what is supported.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "server/text/decode_steps.h"
#include "server/text/json_node.h"
#include "server/text/normalizer.h"
#include "server/text/pretokenizer.h"

namespace eddy {

// Null is no step in the first two; without a decoder tokens are joined by spaces.
absl::StatusOr<std::vector<NormalizerStep>> ReadNormalizer(const JsonNode& node);
absl::StatusOr<std::vector<PreTokenizerStep>> ReadPreTokenizer(const JsonNode& node);
absl::StatusOr<std::vector<DecodeStep>> ReadDecoder(const JsonNode& node);

}  // namespace eddy
