// Turns the config.json of one family of models into the native form, in memory, and says what its
// files call things. An adapter also writes down every default, so that below it there are none.
#pragma once

#include <span>

#include "engine/key_reader.h"
#include "engine/model_config.h"

namespace eddy {

struct Adapter {
  const char* model_type;
  // Reads all keys of `keys` but "model_type", and leaves faults in it.
  ModelConfig (*read)(KeyReader& keys);
  // Part of FitToFiles; null: the config says it all.
  void (*fit)(const TensorFiles& files, ModelConfig* config) = nullptr;
};

// The only list of them.
std::span<const Adapter> Adapters();

ModelConfig ReadNative(KeyReader& keys);
ModelConfig ReadDeltaNet(KeyReader& keys);
ModelConfig ReadGatedDeltaNet(KeyReader& keys);
ModelConfig ReadGla(KeyReader& keys);
ModelConfig ReadMamba(KeyReader& keys);
ModelConfig ReadMamba2(KeyReader& keys);
ModelConfig ReadXlstm(KeyReader& keys);
ModelConfig ReadKda(KeyReader& keys);
ModelConfig ReadKaczmarz(KeyReader& keys);
ModelConfig ReadKalman(KeyReader& keys);
ModelConfig ReadOsdnDeltaNet(KeyReader& keys);
ModelConfig ReadOsdnGatedDeltaNet(KeyReader& keys);
ModelConfig ReadOsdnKda(KeyReader& keys);

// Early files of the family hold gate and up of an MLP as one tensor, the rows of the gate first.
void FitFla(const TensorFiles& files, ModelConfig* config);
void FitKda(const TensorFiles& files, ModelConfig* config);
void FitOsdn(const TensorFiles& files, ModelConfig* config);
void FitOsdnKda(const TensorFiles& files, ModelConfig* config);

}  // namespace eddy
