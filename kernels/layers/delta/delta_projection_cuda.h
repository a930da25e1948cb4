// What layer "delta" multiplies with the normed rows, on the GPU: W_q, W_k, W_v, W_gate, W_step,
// W_decay, W_retention, and the two matrices of a low rank. Internal to the layer, engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_layer.h"
#include "kernels/cuda/gemm.h"
#include "kernels/layers/delta/delta_cuda_rows.h"
#include "kernels/layers/delta/delta_parts_cuda.h"

namespace eddy {

class DeltaProjection {
 public:
  DeltaProjection(const DeltaOptions& options, const LayerNeeds& needs, const LayerParts& parts,
                  const CudaContext& context);
  // rows.projected, .logits, .z and .channel_decay of a part from x [part.rows, D], its rows of the
  // residual. `normed` [part.rows, D] of the matrices' type may be overwritten.
  void Run(const DeltaPart& part, const float* x, void* normed, const DeltaCudaRows& rows) const;
  // While loading: what Run will do for long prompts. Of `rows` the layout counts, no memory.
  void PrepareLong(const DeltaCudaRows& rows) const;

 private:
  // A weight [out, D] whose results take the columns from `column` on.
  struct Matrix {
    const std::byte* data = nullptr;
    int64_t out = 0;
    int64_t column = 0;
  };
  class Products;
  Products ProductsOf(const DeltaPart& part, const float* x, void* normed,
                      const DeltaCudaRows& rows) const;

  const DeltaColumns columns_;
  const DType type_;
  CudaGemm* const gemm_;
  const int64_t d_model_, v_width_, channels_, gate_rank_, decay_rank_;
  const float norm_eps_;
  const float* norm_;
  std::vector<Matrix> wide_, logits_, low_;  // into rows.projected, .logits, .low
  const std::byte *gate_up_, *decay_up_;     // null: no low rank
};

// The vectors of the prepare kernel; those that are derived from weights are made on the way.
DeltaVectors MakeDeltaVectors(const DeltaOptions& options, const LayerNeeds& needs,
                              const LayerParts& parts, const CudaContext& context);

}  // namespace eddy
