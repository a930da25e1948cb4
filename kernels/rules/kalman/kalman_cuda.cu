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

// All rows of a sequence, whose states fit a group: the filters stay in registers. What is seen is
// loaded kAhead tokens before it is needed, because a token takes less time than a load.
template <int kVec, int kGroup, bool kReadouts>
__global__ void __launch_bounds__(kThreads)
    RowsKernel(const Sequences sequences, const KalmanCudaArgs p) {
  constexpr int kAhead = kVec == 1 ? 8 : 4;
  const int64_t channel =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  const int lane = threadIdx.x % kGroup;
  const int64_t s = lane * kVec;
  const int i = sequences.first + static_cast<int>(blockIdx.y);
  const int64_t first = sequences.row_start[i];
  const int rows = static_cast<int>(sequences.row_start[i + 1] - first);
  const int32_t slot = sequences.slots[i];
  float* const y = p.y + first * p.channels + channel;
  if (slot == kNoSlot) {
    for (int t = lane; t < rows && channel < p.channels; t += kGroup) y[t * p.channels] = 0.0f;
    return;
  }
  const bool live = channel < p.channels && s < p.state_dim;
  const int64_t at = channel * p.state_dim + s;
  KalmanModel<kVec> model = {};
  KalmanState<kVec> state = {};
  if (live) {
    model = {LoadFloats<kVec>(p.transition, at), LoadFloats<kVec>(p.noise, at)};
    state = {LoadFloats<kVec>(FieldAt<float>(p.precision, slot), at),
             LoadFloats<kVec>(FieldAt<float>(p.information, slot), at)};
  }
  // Loads need no bounds: beyond the last row they repeat it, and threads without states read those
  // of others, which they do not use.
  const int last = rows - 1;
  const int64_t own_channel = live ? channel : 0, own_state = live ? s : 0;
  const float* const v = p.v + first * p.v_stride + own_channel;
  const float* const certainty = p.certainty + first * p.certainty_stride + own_channel;
  const float* const k = p.k + first * p.k_stride + own_state;
  const float* const q = p.q + first * p.q_stride + own_state;
  const auto bytes = [](int64_t stride) { return static_cast<int>(stride * 4); };
  const int v_bytes = bytes(p.v_stride), certainty_bytes = bytes(p.certainty_stride);
  const int k_bytes = bytes(p.k_stride), q_bytes = bytes(p.q_stride);
  KalmanSeen<kVec> seen[kAhead], next[kAhead];
  const auto load = [&](KalmanSeen<kVec>(&to)[kAhead], int begin) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int t = min(begin + j, last);
      to[j] = {.k = LoadFloats<kVec>(RowsOn(k, t, k_bytes), 0),
               .q = LoadFloats<kVec>(RowsOn(q, t, q_bytes), 0),
               .v = *RowsOn(v, t, v_bytes),
               .certainty = *RowsOn(certainty, t, certainty_bytes)};
    }
  };
  load(seen, 0);
  for (int begin = 0; begin < rows; begin += kAhead) {
    load(next, begin + kAhead);
    float sums[kAhead] = {};
    if (!kReadouts && begin + kAhead <= rows) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) sums[j] = KalmanAdvance(model, seen[j], p.prior, state);
    } else {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (begin + j >= rows) break;
        [[maybe_unused]] KalmanTold told;
        if (kReadouts && live) ReadInnovation(model, seen[j], state, told);
        sums[j] = KalmanAdvance(model, seen[j], p.prior, state);
        if (kReadouts && live) ReadPosterior(model, seen[j], p.prior, state, told);
        if constexpr (kReadouts) {
          const float y_row = ReduceGroup<kGroup>(live ? sums[j] : 0.0f);
          TellRow<kGroup>(p, first + begin + j, channel, y_row, told);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) sums[j] = live ? sums[j] : 0.0f;
    const int own = begin + ReduceMany<kGroup>(sums);
    constexpr int kOwn = kAhead > kGroup ? kAhead / kGroup : 1;
    constexpr int kSame = kGroup > kAhead ? kGroup / kAhead : 1;  // lanes with the same sum
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (lane % kSame == 0 && channel < p.channels && own + j < rows) {
        y[(own + j) * p.channels] = sums[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) seen[j] = next[j];
  }
  if (!live) return;
  StoreFloats(FieldAt<float>(p.precision, slot), at, state.lambda);
  StoreFloats(FieldAt<float>(p.information, slot), at, state.eta);
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

// Calls launch.operator()<kGroup>().
template <typename Launch>
void WithGroup(int group, const Launch& launch) {
  switch (group) {
    case 1:
      return launch.template operator()<1>();
    case 2:
      return launch.template operator()<2>();
    case 4:
      return launch.template operator()<4>();
    case 8:
      return launch.template operator()<8>();
    case 16:
      return launch.template operator()<16>();
    default:
      return launch.template operator()<32>();
  }
}

struct Part {
  const Step& step;
  const KalmanCudaArgs& args;
  Sequences sequences;
  int count() const { return sequences.end - sequences.first; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(step.stream); }
};

void Tell(const Part& part, int group) {
  TellKernel<<<static_cast<unsigned>(part.count()), kThreads, 0, part.stream()>>>(
      part.sequences, part.args, KalmanBlocks(part.args.channels, group), part.step.rows);
}

template <int kVec, int kTogether>
void LaunchSteps(const Part& part) {
  const int group = KalmanGroup(part.args.state_dim, kVec);
  const bool tells = part.args.readouts.out != nullptr;
  const int together = tells ? 1 : kTogether;
  const dim3 grid(static_cast<unsigned>(KalmanBlocks(part.args.channels, group)),
                  static_cast<unsigned>((part.count() + together - 1) / together));
  WithGroup(group, [&]<int kGroup>() {
    const auto kernel =
        tells ? StepKernel<kVec, kGroup, 1, true> : StepKernel<kVec, kGroup, kTogether, false>;
    kernel<<<grid, kThreads, 0, part.stream()>>>(part.sequences, part.args);
  });
  if (tells) Tell(part, group);
}

template <int kVec>
void LaunchRows(const Part& part) {
  const int group = KalmanGroup(part.args.state_dim, kVec);
  if (group * kVec < part.args.state_dim) return LaunchSteps<kVec, 1>(part);
  const bool tells = part.args.readouts.out != nullptr;
  const dim3 grid(static_cast<unsigned>(KalmanBlocks(part.args.channels, group)),
                  static_cast<unsigned>(part.count()));
  WithGroup(group, [&]<int kGroup>() {
    const auto kernel = tells ? RowsKernel<kVec, kGroup, true> : RowsKernel<kVec, kGroup, false>;
    kernel<<<grid, kThreads, 0, part.stream()>>>(part.sequences, part.args);
  });
  if (tells) Tell(part, group);
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
  // A few prompts have too few channels to fill the device with four states per thread; but a warp
  // must have room for a channel.
  const bool four_each = four && (many.count() >= 4 || p.state_dim > 32);
  if (many.count() > 0) four_each ? LaunchRows<4>(many) : LaunchRows<1>(many);
}

}  // namespace eddy
