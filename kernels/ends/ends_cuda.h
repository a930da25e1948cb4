// Embedding, head and sampler on the GPU. Plain C++. Engine thread only; allocates only when made.
#pragma once

#include <memory>

#include "kernels/cuda/cuda_layer.h"
#include "kernels/device.h"

namespace eddy {

// Matrices (embedding, head) are of type `context.matrices`, the norm's weight is float. Null if
// memory is short. What it keeps on the device: at most max_rows * (d_model * 4 + 128) bytes, and
// room for the logits of some rows if the vocabulary is too large for shared memory.
std::unique_ptr<Ends> MakeEndsCuda(const EndsSpec& spec, const EndsParts& parts, int max_rows,
                                   const CudaContext& context);

}  // namespace eddy
