#include <cuda_runtime.h>

#include <cmath>

#include "kernels/rules/kalman/kalman_cuda.cuh"

namespace eddy {
namespace {

constexpr int kThreads = kKalmanThreads;

struct Sequences {
  const int32_t* row_start;
  const int32_t* slots;
  int first, end;
};

// The k and q of a token that belong to states [s, s + kVec), zeros beyond the last one.
template <int kVec>
__device__ inline KalmanSeen<kVec> See(const KalmanCudaArgs& p, int64_t row, int64_t channel,
                                       int64_t s) {
  KalmanSeen<kVec> seen = {};
  if (channel < p.channels) {
    seen.v = p.v[row * p.v_stride + channel];
    seen.certainty = p.certainty[row * p.certainty_stride + channel];
  }
  if (s < p.state_dim) {
    seen.k = LoadFloats<kVec>(p.k, row * p.k_stride + s);
    seen.q = LoadFloats<kVec>(p.q, row * p.q_stride + s);
  }
  return seen;
}

// One row of up to kTogether sequences: y runs over them, x over channels. kGroup threads share a
// channel; a thread has kVec neighbouring states, and every (kGroup kVec)-th behind them. Sequences
// go together so that the model is read once for all of them. With kTogether 1 a sequence may have
// any number of rows: then the filters travel through memory for each.
template <int kVec, int kGroup, int kTogether, bool kReadouts>
__global__ void __launch_bounds__(kThreads)
    StepKernel(const Sequences sequences, const KalmanCudaArgs p) {
  static_assert(!kReadouts || kTogether == 1);
  const int64_t channel =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  const int lane = threadIdx.x % kGroup;
  // Threads beyond the last channel have no states, but they take part in the sums.
  const int64_t states = channel < p.channels ? p.state_dim : 0;
  int32_t slot[kTogether];
  int rows[kTogether], first[kTogether];
#pragma unroll
  for (int j = 0; j < kTogether; ++j) {
    const int i = sequences.first + static_cast<int>(blockIdx.y) * kTogether + j;
    slot[j] = kNoSlot, rows[j] = 0, first[j] = 0;
    if (i >= sequences.end) continue;
    slot[j] = sequences.slots[i];
    first[j] = sequences.row_start[i];
    rows[j] = sequences.row_start[i + 1] - first[j];
  }
  const int most = kTogether == 1 ? rows[0] : 1;
  for (int t = 0; t < most; ++t) {
    float y[kTogether] = {};
    KalmanTold told;
    for (int64_t s = lane * kVec; s < states; s += kGroup * kVec) {
      const int64_t at = channel * p.state_dim + s;
      KalmanState<kVec> state[kTogether] = {};
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (slot[j] == kNoSlot) continue;
        state[j].lambda = LoadOnce<kVec>(FieldAt<float>(p.precision, slot[j]), at);
        state[j].eta = LoadOnce<kVec>(FieldAt<float>(p.information, slot[j]), at);
      }
      const KalmanModel<kVec> model = {LoadFloats<kVec>(p.transition, at),
                                       LoadFloats<kVec>(p.noise, at)};
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (slot[j] == kNoSlot) continue;
        const auto seen = See<kVec>(p, first[j] + t, channel, s);
        if constexpr (kReadouts) ReadInnovation(model, seen, state[j], told);
        y[j] += KalmanAdvance(model, seen, p.prior, state[j]);
        if constexpr (kReadouts) ReadPosterior(model, seen, p.prior, state[j], told);
        StoreOnce(FieldAt<float>(p.precision, slot[j]), at, state[j].lambda);
        StoreOnce(FieldAt<float>(p.information, slot[j]), at, state[j].eta);
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float sum = ReduceGroup<kGroup>(y[j]);
      if (lane == 0 && states > 0 && rows[j] > 0) p.y[(first[j] + t) * p.channels + channel] = sum;
      if constexpr (kReadouts) {
        if (slot[j] != kNoSlot) TellRow<kGroup>(p, first[j] + t, channel, sum, told);
      }
    }
  }
}

// From the partials of a row to its read-outs: a warp per row, the sums of a lane in order.
__global__ void __launch_bounds__(kThreads)
    TellKernel(const Sequences sequences, const KalmanCudaArgs p, int64_t blocks, int64_t rows) {
  const int i = sequences.first + static_cast<int>(blockIdx.x);
  const int lane = threadIdx.x % 32;
  const int64_t end = sequences.row_start[i + 1];
  for (int64_t row = sequences.row_start[i] + threadIdx.x / 32; row < end; row += kThreads / 32) {
    float sums[7] = {0, INFINITY, 0, 0, 0, 0, 0};
    if (sequences.slots[i] != kNoSlot) {
      const float* partials = p.readouts.partials + row * KalmanPartials(p.channels, p.state_dim);
      for (int64_t b = lane; b < blocks; b += 32) {
#pragma unroll
        for (int j = 0; j < 7; ++j) {
          const float part = partials[b * kKalmanPartials + j];
          sums[j] = j == 1 ? Least()(sums[j], part) : sums[j] + part;
        }
      }
#pragma unroll
      for (int j = 0; j < 7; ++j) {
        sums[j] = j == 1 ? ReduceGroup<32>(sums[j], Least()) : ReduceGroup<32>(sums[j]);
      }
    } else {
      sums[1] = 0.0f;
    }
    if (lane > 0) continue;
    const auto channels = static_cast<float>(p.channels);
    const float states = channels * static_cast<float>(p.state_dim);
    float* const out = p.readouts.out + row;
    out[0 * rows] = sums[0] / states;
    out[1 * rows] = sums[1];
    out[2 * rows] = sums[2] / channels;
    out[3 * rows] = sums[3] / states;
    out[4 * rows] = sums[4] / channels;
    // Without any read-out (closed gates) nothing of it is unsure.
    out[5 * rows] = sums[6] > 0.0f ? sqrtf(sums[5] / sums[6]) : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads)
    DiscretizeKernel(const KalmanDynamicsArgs p, float* transition, float* noise) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const double raw = p.step_raw[i];
  const double rate = exp(static_cast<double>(p.rate_log[i]));
  const double step = (raw > 20 ? raw : log1p(exp(raw))) + 1e-7;
  double variance = p.process_noise[i];
  variance = p.floored ? fmax(variance, 1e-7) : variance + 1e-12;
  if (p.floored && p.noise_max > 0) variance = fmin(variance, static_cast<double>(p.noise_max));
  const double floored_rate = fmax(rate, 1e-8);
  const double growth = p.discretization == Discretization::kOrnsteinUhlenbeck
                            ? -expm1(-2 * floored_rate * step) / (2 * floored_rate)
                            : step;
  transition[i] = static_cast<float>(exp(-step * rate));
  noise[i] = static_cast<float>(variance * growth);
}

struct Part {
  const Step& step;
  const KalmanCudaArgs& args;
  Sequences sequences;
  int count() const { return sequences.end - sequences.first; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(step.stream); }
};

// `blocks` of them have told of each row.
void Tell(const Part& part, int64_t blocks) {
  TellKernel<<<static_cast<unsigned>(part.count()), kThreads, 0, part.stream()>>>(
      part.sequences, part.args, blocks, part.step.rows);
}

template <int kVec, int kTogether>
void LaunchSteps(const Part& part) {
  const int group = KalmanGroup(part.args.state_dim, kVec);
  const bool tells = part.args.readouts.out != nullptr;
  const int together = tells ? 1 : kTogether;
  const dim3 grid(static_cast<unsigned>(KalmanBlocks(part.args.channels, group)),
                  static_cast<unsigned>((part.count() + together - 1) / together));
  WithKalmanGroup(group, [&]<int kGroup>() {
    const auto kernel =
        tells ? StepKernel<kVec, kGroup, 1, true> : StepKernel<kVec, kGroup, kTogether, false>;
    kernel<<<grid, kThreads, 0, part.stream()>>>(part.sequences, part.args);
  });
  if (tells) Tell(part, grid.x);
}

}  // namespace

int64_t KalmanCudaPartials(int64_t channels, int64_t state_dim) {
  return KalmanPartials(channels, state_dim);
}

void DiscretizeCuda(Stream stream, const KalmanDynamicsArgs& args, float* transition,
                    float* noise) {
  const auto blocks = static_cast<unsigned>((args.count + kThreads - 1) / kThreads);
  DiscretizeKernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args, transition,
                                                                               noise);
}

void KalmanCuda(const Step& step, const KalmanCudaArgs& p) {
  const bool four = p.state_dim % 4 == 0 && TakesFour(p.precision) && TakesFour(p.information) &&
                    TakesFour(p.transition, 0) && TakesFour(p.noise, 0) &&
                    TakesFour(p.k, p.k_stride) && TakesFour(p.q, p.q_stride);
  const auto part = [&](int first, int end) {
    return Part{.step = step, .args = p, .sequences = {step.row_start, step.slots, first, end}};
  };
  const Part single = part(0, step.single_row_sequences);
  const Part many = part(step.single_row_sequences, step.sequences);
  if (single.count() > 0) four ? LaunchSteps<4, 2>(single) : LaunchSteps<1, 2>(single);
  if (many.count() == 0) return;
  if (!KalmanRowsFit(p.state_dim)) {
    four ? LaunchSteps<4, 1>(many) : LaunchSteps<1, 1>(many);
    return;
  }
  const int64_t blocks = KalmanRowsCuda(step, p, many.sequences.first, many.sequences.end);
  if (p.readouts.out != nullptr) Tell(many, blocks);
}

}  // namespace eddy
