// The layers of a model, in order.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace eddy {

// Constant after loading, but for what the layers do to state and scratch. Owns the memory that its
// parts point to, all but the records. Engine thread only.
class Model {
 public:
  // Everything that the layers and ends were made from: it lives as long as they do.
  struct Memory {
    Buffer weights = {};
    Buffer scratch = {};
    Buffer activations = {};
  };
  // `x` is `memory.activations`, [most rows of a step, d_model].
  Model(Memory memory, std::vector<std::unique_ptr<Layer>> layers, std::unique_ptr<Ends> ends,
        TensorView x)
      : memory_(std::move(memory)), layers_(std::move(layers)), ends_(std::move(ends)), x_(x) {}

  // Feeds the step's rows and advances the state of its sequences. Returns what the head reads,
  // [rows, d_model], valid until the next call.
  TensorView Forward(const Step& step) {
    TensorView x = x_;
    x.shape[0] = step.rows;
    ends_->Embed(step, x);
    for (auto& layer : layers_) layer->Forward(step, x);
    return x;
  }

  // Makes the persistent fields of the step's sequences say all; the step has no rows.
  void Flush(const Step& step) {
    for (auto& layer : layers_) layer->Flush(step);
  }

  Ends& ends() { return *ends_; }

 private:
  Memory memory_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<Ends> ends_;
  TensorView x_;
};

}  // namespace eddy
