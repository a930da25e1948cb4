// The Kalman filters along the rows of a sequence, which follow one another: what counts is how
// little is done per token, and how short the chain from one token to the next is. So the filter is
// carried as lambda = n / d and mean = h / n, in which a token is linear,
//   d' = a^2 d + p n,   n' = n + L k^2 d',   h' = a h + L k v d'
// and no quotient is on the way to the next one. Nothing cancels but what cancels in the mean: all
// other terms are positive. After every second token all three are divided by n, whose inverse is
// at hand from the mean; until then n grows by the product of what each token adds to the precision
// relative to its prediction, for which floats have room up to a factor of 1e19 each.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_stream.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/kalman/kalman_cuda.cuh"

namespace eddy {
namespace {

constexpr int kThreads = kKalmanThreads;
constexpr int kStages = 4;
constexpr float kFloor = 1e-12f;

// What a block has in shared memory of kRows tokens.
template <int kVec, int kGroup>
struct Tile {
  static constexpr int kChannels = kThreads / kGroup, kStates = kGroup * kVec;
  static constexpr int kBatch = kVec <= 2 ? 8 : 4;  // tokens between two sums over a group
  static constexpr int kFit = 2048 / (2 * kChannels + 2 * kStates);
  static constexpr int kRows = kFit < kBatch ? kBatch : kFit / kBatch * kBatch;
  static constexpr int kKeys = kRows * kStates, kValues = kRows * kChannels;
  float keys[2 * kKeys];      // k [kRows, kStates], then q
  float values[2 * kValues];  // v [kRows, kChannels], then certainty
};

struct Walk {
  const int32_t* row_start;
  const int32_t* slots;
  int first;     // sequence of blockIdx.y 0
  bool sixteen;  // rows can be copied 16 bytes at once
};

// Copies what the block sees, tile after tile; all its threads have one.
template <typename T>
class Streams {
 public:
  __device__ Streams(const Walk& walk, const KalmanCudaArgs& p, int64_t first, int rows)
      : k_(p.k + first * p.k_stride, p.k_stride * 4, p.state_dim * 4, walk.sixteen),
        q_(p.q + first * p.q_stride, p.q_stride * 4, p.state_dim * 4, walk.sixteen),
        v_(p.v + first * p.v_stride + Channel(), p.v_stride * 4, Width(p), walk.sixteen),
        certainty_(p.certainty + first * p.certainty_stride + Channel(), p.certainty_stride * 4,
                   Width(p), walk.sixteen),
        left_(rows) {}

  // One group of copies, also when no rows are left.
  __device__ void Next(T& tile) {
    if (left_ > 0) {
      const int count = min(left_, T::kRows);
      k_.Next(tile.keys, count);
      q_.Next(tile.keys + T::kKeys, count);
      v_.Next(tile.values, count);
      certainty_.Next(tile.values + T::kValues, count);
      left_ -= count;
    }
    CommitCopies();
  }

 private:
  __device__ static int64_t Channel() { return int64_t{blockIdx.x} * T::kChannels; }
  __device__ static int64_t Width(const KalmanCudaArgs& p) {
    return min(int64_t{T::kChannels}, p.channels - Channel()) * 4;
  }
  RowStream<kThreads, T::kRows, T::kStates * 4, float> k_, q_;
  RowStream<kThreads, T::kRows, T::kChannels * 4, float> v_, certainty_;
  int left_;
};

template <int kVec>
struct Ratio {
  Floats<kVec> n, d, h;
};

// Advances by one token and returns sum_s q mean, of the prior or not. Of each two tokens the
// second one divides, so that n is 1 before the first. d' / d is kept from falling below 1e-12 only
// if kFloors: where a^2 is not that small, it cannot.
template <bool kPrior, bool kFloors, int kVec>
__device__ inline float Advance(const KalmanModel<kVec>& model, const KalmanSeen<kVec>& seen,
                                bool divides, Ratio<kVec>& ratio) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const float a = model.a.v[i], k = seen.k.v[i], before = divides ? ratio.n.v[i] : 1.0f;
    const float noise = divides ? __fmul_rn(model.p.v[i], before) : model.p.v[i];
    float d = __fmaf_rn(__fmul_rn(a, a), ratio.d.v[i], noise);
    if (kFloors) d = d < kFloor * ratio.d.v[i] ? kFloor * ratio.d.v[i] : d;
    const float gain = __fmul_rn(__fmul_rn(seen.certainty, k), d);
    const float n = __fmaf_rn(gain, k, before);
    const float h = __fmaf_rn(gain, seen.v, __fmul_rn(a, ratio.h.v[i]));
    const float inverse = Reciprocal(n);
    const float mean = __fmul_rn(h, inverse);
    ratio.n.v[i] = divides ? 1.0f : n;
    ratio.d.v[i] = divides ? __fmul_rn(d, inverse) : d;
    ratio.h.v[i] = divides ? mean : h;
    const float told = kPrior ? __fmul_rn(a, mean) : mean;
    sum = i == 0 ? __fmul_rn(seen.q.v[i], told) : __fmaf_rn(seen.q.v[i], told, sum);
  }
  return sum;
}

// The filter as the record has it, and as read-outs take it.
template <int kVec>
__device__ inline KalmanState<kVec> StateOf(const Ratio<kVec>& ratio) {
  KalmanState<kVec> state;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    state.lambda.v[i] = ratio.n.v[i] / ratio.d.v[i];
    state.eta.v[i] = ratio.h.v[i] / ratio.d.v[i];
  }
  return state;
}

// All rows of a sequence; y runs over sequences, x over channels. kGroup threads share a channel,
// of which each has kVec neighbouring states, in registers.
template <int kVec, int kGroup, bool kPrior, bool kReadouts>
__global__ void __launch_bounds__(kThreads) RowsKernel(const Walk walk, const KalmanCudaArgs p) {
  using T = Tile<kVec, kGroup>;
  constexpr int kRows = T::kRows, kBatch = T::kBatch;
  __shared__ alignas(16) T tiles[kStages];
  const int i = walk.first + static_cast<int>(blockIdx.y);
  const int64_t first = walk.row_start[i];
  const int rows = static_cast<int>(walk.row_start[i + 1] - first);
  const int32_t slot = walk.slots[i];
  const int thread = ThreadOfBlock(), lane = thread % kGroup, column = thread / kGroup;
  const int64_t channel = int64_t{blockIdx.x} * T::kChannels + column;
  const bool live = channel < p.channels;
  float* const y = p.y + first * p.channels + channel;
  if (slot == kNoSlot) {
    for (int t = lane; t < rows && live; t += kGroup) y[t * p.channels] = 0.0f;
    return;
  }
  if (p.state_dim < T::kStates) {  // states beyond the last one see zeros
    for (T& tile : tiles) {
      for (int t = thread; t < 2 * T::kKeys; t += kThreads) tile.keys[t] = 0.0f;
    }
    __syncthreads();
  }
  Streams<T> streams(walk, p, first, rows);
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) streams.Next(tiles[stage]);

  const int s = lane * kVec;
  const int own = live ? max(0, min(kVec, static_cast<int>(p.state_dim) - s)) : 0;
  const int64_t at = channel * p.state_dim + s;
  float* const precision = FieldAt<float>(p.precision, slot) + at;
  float* const information = FieldAt<float>(p.information, slot) + at;
  KalmanModel<kVec> model = {};
  Ratio<kVec> ratio = {};
  bool forgets = false;  // some state, so much that the floor may count
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    ratio.n.v[j] = 1.0f;
    if (j >= own) continue;
    model.a.v[j] = p.transition[at + j];
    model.p.v[j] = p.noise[at + j];
    forgets |= model.a.v[j] * model.a.v[j] < kFloor;
    ratio.d.v[j] = 1.0f / AtLeastNone(precision[j]);
    ratio.h.v[j] = information[j] * ratio.d.v[j];
  }
  forgets = __any_sync(kWholeWarp, forgets);
  // The sums of a batch are written after the next one, of which nothing waits for them.
  float sums[kBatch] = {};
  GroupRows<kGroup, kBatch> out(thread, y, p.channels, live ? rows : 0);
  for (int begin = 0, stage = 0; begin < rows; begin += kRows, stage = (stage + 1) % kStages) {
    WaitCopies<kStages - 2>();
    __syncthreads();
    streams.Next(tiles[(stage + kStages - 1) % kStages]);  // where the tile before this one was
    const T& tile = tiles[stage];
    const float* const keys = tile.keys + s;
    const float* const values = tile.values + column;
    const auto see = [&](int t) {
      return KalmanSeen<kVec>{.k = LoadShared<kVec>(keys + t * T::kStates),
                              .q = LoadShared<kVec>(keys + T::kKeys + t * T::kStates),
                              .v = values[t * T::kChannels],
                              .certainty = values[T::kValues + t * T::kChannels]};
    };
    const int count = min(rows - begin, kRows);
    if (!kReadouts && count == kRows && !forgets) {
#pragma unroll
      for (int t0 = 0; t0 < kRows; t0 += kBatch) {
        float fresh[kBatch];
#pragma unroll
        for (int t = 0; t < kBatch; ++t) {
          fresh[t] = Advance<kPrior, false>(model, see(t0 + t), t % 2 == 1, ratio);
        }
        out.Write(sums);
#pragma unroll
        for (int t = 0; t < kBatch; ++t) sums[t] = fresh[t];
      }
      continue;
    }
    for (int t0 = 0; t0 < count; t0 += kBatch) {
      out.Write(sums);
#pragma unroll
      for (int t = 0; t < kBatch; ++t) {
        if (t0 + t >= count) break;
        const KalmanSeen<kVec> seen = see(t0 + t);
        [[maybe_unused]] KalmanTold told;
        if constexpr (kReadouts) ReadInnovation(model, seen, StateOf(ratio), told, own);
        sums[t] = Advance<kPrior, true>(model, seen, t % 2 == 1, ratio);
        if constexpr (kReadouts) {
          ReadPosterior(model, seen, kPrior, StateOf(ratio), told, own);
          TellRow<kGroup>(p, first + begin + t0 + t, channel, ReduceGroup<kGroup>(sums[t]), told);
        }
      }
    }
  }
  out.Write(sums);
  const KalmanState<kVec> state = StateOf(ratio);
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    if (j >= own) continue;
    precision[j] = state.lambda.v[j];
    information[j] = state.eta.v[j];
  }
}

template <int kVec, int kGroup>
int64_t Launch(const Step& step, const KalmanCudaArgs& p, int first, int end) {
  const Walk walk = {.row_start = step.row_start,
                     .slots = step.slots,
                     .first = first,
                     .sixteen = TakesSixteen(p.k, p.k_stride * 4, p.state_dim * 4) &&
                                TakesSixteen(p.q, p.q_stride * 4, p.state_dim * 4) &&
                                TakesSixteen(p.v, p.v_stride * 4, p.channels * 4) &&
                                TakesSixteen(p.certainty, p.certainty_stride * 4, p.channels * 4)};
  const dim3 grid(static_cast<unsigned>(KalmanBlocks(p.channels, kGroup)),
                  static_cast<unsigned>(end - first));
  const bool tells = p.readouts.out != nullptr;
  const auto kernel =
      p.prior ? tells ? RowsKernel<kVec, kGroup, true, true> : RowsKernel<kVec, kGroup, true, false>
      : tells ? RowsKernel<kVec, kGroup, false, true>
              : RowsKernel<kVec, kGroup, false, false>;
  kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(step.stream)>>>(walk, p);
  return grid.x;
}

}  // namespace

int64_t KalmanRowsCuda(const Step& step, const KalmanCudaArgs& p, int first, int end) {
  // Two states per thread: one is slower where many channels fill the device, and four leave half
  // of it idle in a single prompt.
  if (p.state_dim > 64) return Launch<4, 32>(step, p, first, end);
  int64_t blocks = 0;
  WithKalmanGroup(KalmanGroup(p.state_dim, 2),
                  [&]<int kGroup>() { blocks = Launch<2, kGroup>(step, p, first, end); });
  return blocks;
}

}  // namespace eddy
