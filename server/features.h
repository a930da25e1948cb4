// What this server offers besides plain generation, in one place: requests that need more are
// UNIMPLEMENTED with the feature's name, and GetModel lists what is offered.
#pragma once

#include <string_view>

namespace eddy {

// Names in ErrorInfo.metadata["feature"] of what is not offered.
inline constexpr std::string_view kFeatureSessions = "sessions";
inline constexpr std::string_view kFeaturePrefixCache = "prefix_cache.store_at";
inline constexpr std::string_view kFeatureNumSequences = "sampling.num_sequences";
inline constexpr std::string_view kFeatureJsonSchema = "decoding.json_schema";
inline constexpr std::string_view kFeatureRegex = "decoding.regex";
inline constexpr std::string_view kFeatureChoices = "decoding.choices";
inline constexpr std::string_view kFeatureGrammar = "decoding.grammar";
inline constexpr std::string_view kFeatureJsonObject = "decoding.json_object";
inline constexpr std::string_view kFeatureStateStats = "response.state_stats";

// Most sequences of one call.
inline constexpr int kMaxNumSequences = 1;

}  // namespace eddy
