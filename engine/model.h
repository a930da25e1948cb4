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
  struct Block {
    std::unique_ptr<Layer> layer;
    int64_t readouts = 0;  // how many it tells
  };
  // `x` is `memory.activations`, [most rows of a step, d_model].
  Model(Memory memory, std::vector<Block> blocks, std::unique_ptr<Ends> ends, TensorView x)
      : memory_(std::move(memory)), blocks_(std::move(blocks)), ends_(std::move(ends)), x_(x) {}

  // Feeds the step's rows and advances the state of its sequences. Returns what the head reads,
  // [rows, d_model], valid until the next call. What step.readouts names, unless it is null, has
  // room for the read-outs of all layers, which lie there one after another.
  TensorView Forward(Step step) {
    TensorView x = x_;
    x.shape[0] = step.rows;
    ends_->Embed(step, x);
    for (Block& block : blocks_) {
      block.layer->Forward(step, x);
      if (step.readouts != nullptr) step.readouts += block.readouts * step.rows;
    }
    return x;
  }

  // Makes the persistent fields of the step's sequences say all; the step has no rows.
  void Flush(const Step& step) {
    for (Block& block : blocks_) block.layer->Flush(step);
  }

  Ends& ends() { return *ends_; }

 private:
  Memory memory_;
  std::vector<Block> blocks_;
  std::unique_ptr<Ends> ends_;
  TensorView x_;
};

}  // namespace eddy
