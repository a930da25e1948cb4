#include <cuda_runtime.h>

#include "kernels/cuda/typed.cuh"
#include "kernels/rules/decay_scan/decay_scan_chunk_cuda.cuh"

namespace eddy {
namespace {

using decay_chunk::Bf16;
using decay_chunk::kChunk;
using decay_chunk::kSegmentUnit;

int PaddedDim(int64_t key_dim) { return key_dim <= 64 ? 64 : (key_dim <= 128 ? 128 : 256); }

// Bytes of the pieces of scratch for each row, in the order in which they are cut. The first ones
// are multiples of 16.
struct Pieces {
  Pieces(const DecayScanShape& s, bool channel) {
    const int64_t padded = PaddedDim(s.key_dim), outputs = s.states * s.reads;
    constexpr int64_t kBf16 = sizeof(Bf16), kFloat = sizeof(float);
    queries = kBf16 * padded * (channel ? outputs : s.query_heads);
    keys = kBf16 * padded * (channel ? s.states : s.key_heads);
    scores = kBf16 * kChunk * outputs;
    factors = channel ? 0 : 2 * kFloat * s.states;
    decays = kFloat * s.states * (channel ? padded : 1);     // of a slot
    segments = kFloat * s.states * s.key_dim * s.value_dim;  // likewise
  }
  int64_t Bytes() const {
    const int64_t slots = (decays + kDecayChunkRows - 1) / kDecayChunkRows +
                          (segments + kSegmentUnit - 1) / kSegmentUnit;
    return (queries + keys + scores + factors + slots + 15) / 16 * 16;
  }
  int64_t queries, keys, scores, factors, decays, segments;
};

}  // namespace

bool DecayChunkFits(const DecayScanShape& shape) {
  return shape.key_dim <= 256 && shape.key_dim % 8 == 0 && shape.value_dim % 4 == 0 &&
         decay_chunk::WalkBytes(PaddedDim(shape.key_dim)) <= delta_chunk::SharedBytes();
}

int64_t DecayChunkScratchBytesPerRow(const DecayScanShape& shape, bool channel_decay) {
  return DecayChunkFits(shape) ? Pieces(shape, channel_decay).Bytes() : 0;
}

void LaunchDecayChunks(const Step& step, const DecayScanCudaArgs& args) {
  const DecayScanShape& s = args.shape;
  const int64_t first_row = step.single_row_sequences;
  const int64_t rows = step.rows - first_row;
  const int chunk_slots = static_cast<int>(rows / kDecayChunkRows);
  const bool channel = args.channel_decay;
  const Pieces pieces(s, channel);
  decay_chunk::Problem p = {
      .args = args,
      .part = MakeDecayPart(step, s, step.single_row_sequences, step.sequences),
      .states = static_cast<int>(s.states),
      .outputs = static_cast<int>(s.states * s.reads),
      .reads = static_cast<int>(s.reads),
      .key_dim = static_cast<int>(s.key_dim),
      .value_dim = static_cast<int>(s.value_dim),
      .padded_dim = PaddedDim(s.key_dim)};
  p.query_group = channel ? 1 : p.part.outputs_per_query;
  p.key_group = channel ? 1 : p.part.states_per_key;
  auto* at = static_cast<std::byte*>(args.scratch);
  const auto take = [&](auto*& piece, int64_t bytes) {
    piece = reinterpret_cast<std::remove_reference_t<decltype(piece)>>(at);
    at += bytes;
  };
  take(p.queries, step.rows * pieces.queries);
  take(p.keys, step.rows * pieces.keys);
  take(p.scores, step.rows * pieces.scores);
  take(p.segments, rows / kSegmentUnit * pieces.segments);
  take(p.factors, step.rows * pieces.factors);
  take(p.chunk_decay, chunk_slots * pieces.decays);
  const int longest = step.max_rows_per_sequence;
  const int segment_rows = decay_chunk::SegmentRows(longest, s);
  // Shorter sequences have no more segments.
  const int max_segments = (longest + segment_rows - 1) / segment_rows;
  if (channel) {
    decay_chunk::PrepareVector(p, chunk_slots, step.stream);
  } else {
    decay_chunk::PrepareScalar(p, chunk_slots, step.stream);
  }
  if (max_segments > 1) {
    decay_chunk::Walk(p, /*outputs=*/false, max_segments, step.stream);
    decay_chunk::Combine(p, step.stream);
  }
  decay_chunk::Walk(p, /*outputs=*/true, max_segments, step.stream);
}

}  // namespace eddy
