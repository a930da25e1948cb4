#include "server/load_to_serve.h"

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "engine/load.h"

namespace eddy {

absl::StatusOr<ModelToServe> LoadToServe(const ServerConfig& config, const OpenedDevice& opened) {
  Device* const device = opened.device.get();
  const absl::Time began = absl::Now();
  EDDY_ASSIGN_OR_RETURN(LoadedModel loaded,
                        LoadModel({.model_dir = config.model_dir,
                                   .max_sequences = config.max_sequences,
                                   .memory_fraction = config.memory_fraction,
                                   .max_rows_per_step = config.max_rows_per_step,
                                   .kv_fraction = config.kv_fraction,
                                   .kv_page_tokens = config.kv_page_tokens,
                                   .record_steps = config.cuda_graphs},
                                  device));
  ModelToServe model{.info = std::move(loaded.info),
                     .capacity = loaded.capacity,
                     .executor = std::move(loaded.executor),
                     .device = {.backend = device->backend(), .name = device->description()}};
  if (!opened.no_gpu.empty()) model.device.name += " (no GPU: " + opened.no_gpu + ")";
  if (!model.info.tokenizer_kind.empty()) {
    EDDY_ASSIGN_OR_RETURN(
        model.tokenizer,
        OpenTokenizer({.kind = model.info.tokenizer_kind,
                       .file = model.info.tokenizer_file,
                       .bos = model.info.bos_token,
                       .vocab_size = static_cast<int32_t>(model.info.vocab_size)}));
  }
  model.load_time = absl::Now() - began;
  return model;
}

}  // namespace eddy
