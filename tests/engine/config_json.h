// Configs for tests: those of the golden sets, to be changed, and what the reader makes of one.
#pragma once

#include <string>

#include "engine/model_config.h"
#include "nlohmann/json.hpp"
#include "tests/engine/model_files.h"

namespace eddy {

inline nlohmann::json Golden(const std::string& set) {
  return nlohmann::json::parse(ReadFile("tests/golden/" + set + "/config.json"));
}

inline absl::StatusOr<ModelConfig> Parse(const nlohmann::json& config) {
  return ParseModelConfig(config.dump(), "dir/config.json");
}

}  // namespace eddy
