// Products in plain float arithmetic, for float weights and for shapes that the matrix unit does
// not take. Internal to gemm.cc.
#pragma once

#include "kernels/cuda/gemm.h"
#include "kernels/step.h"

namespace eddy {

// y for all rows of the product: rows have the same bits however many there are, and whatever their
// alignment. The elements of a row go round the 32 lanes of a warp in groups of four; each lane
// sums its own in order of i, then the lanes are added as a butterfly. Strides must be set; no
// norm, no gate.
void RunLaneProduct(Stream stream, const CudaProduct& product);

}  // namespace eddy
