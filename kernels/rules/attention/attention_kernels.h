// The kernels of the attention rule on the GPU, as AttentionCuda launches them. Each attends for
// the sequences that its arguments name: "Rows" for those of many rows, in a grid of all tiles and
// head blocks; "Row" for those of one, in a grid of sequences, blocks per row and head blocks.
#pragma once

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct AttentionKernelArgs;

// Bfloat16 queries, keys and outputs; head_dim 64 or 128; at most kMmaHeads heads to a head block.
inline constexpr int kMmaHeads = 16;
inline constexpr int kMmaQueries = 128;  // of one tile of rows
bool MmaAttentionTakes(DType type, int64_t head_dim);
void LaunchMmaRows(const AttentionKernelArgs& args, int tiles, Stream stream);
void LaunchWgmmaRows(const AttentionKernelArgs& args, int tiles, Stream stream);  // sm_90a
void LaunchMmaRow(const AttentionKernelArgs& args, Stream stream);

// Float queries; keys and outputs of `type`; any even head_dim up to 1024; at most PlainQueries
// heads to a head block and queries to a tile.
int PlainQueries(int64_t head_dim);
void LaunchPlainRows(const AttentionKernelArgs& args, DType type, int tiles, Stream stream);
void LaunchPlainRow(const AttentionKernelArgs& args, DType type, Stream stream);

}  // namespace eddy
