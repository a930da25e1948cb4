// From the flags and a device to what the server serves.
#pragma once

#include "absl/status/statusor.h"
#include "engine/open_device.h"
#include "server/config.h"
#include "server/server.h"

namespace eddy {

// Loads the model of `config.model_dir` and its tokenizer, if it names one. Fails as LoadModel and
// OpenTokenizer do. The device outlives the server that is given the model.
absl::StatusOr<ModelToServe> LoadToServe(const ServerConfig& config, const OpenedDevice& opened);

}  // namespace eddy
