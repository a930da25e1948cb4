// The sampler on the GPU: kernels/sampling.h says what it does. Plain C++; engine thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/cuda_layer.h"
#include "kernels/ends/sampler/sampler_stage.h"

namespace eddy {

// Where a row's logits are worked on. A row is shared by `blocks` blocks, a cluster of them if more
// than one, each with `segment` tokens of it. That depends on the vocabulary and the card alone, so
// a row is summed in one order whatever its company.
struct SamplerShape {
  int blocks = 1;
  int segment = 0;
  bool resident = false;     // the segments fit in shared memory
  int rows_at_once = 0;      // if not: rows that are worked on at the same time, in `working`
  int64_t shared_bytes = 0;  // of a block
};

class SamplerCuda {
 public:
  // Null if memory is short.
  static std::unique_ptr<SamplerCuda> Make(int64_t vocab, const CudaContext& context);
  // Enqueues on the context's stream. `rows` [count] is on the device; the lists are as Stage left
  // them. logits [count, vocab] are only read.
  void Run(int count, const float* logits, const StagedRow* rows, const SampleLists& lists);

 private:
  SamplerCuda(int64_t vocab, const CudaContext& context) : vocab_(vocab), context_(context) {}

  const int64_t vocab_;
  const CudaContext context_;
  SamplerShape shape_;
  float* working_ = nullptr;  // [rows_at_once, blocks * segment]
};

}  // namespace eddy
